"""What to change in a spec that ran out of memory: the settings most likely to help, in order. Pure."""

from collections.abc import Iterator

from trainyard.contract.spec.training_spec import TrainingSpec

MOST = 3
_SHARDED = frozenset({"zero1", "zero2", "fsdp", "hsdp"})


def memory_hint(spec: TrainingSpec, *, on_device: bool) -> str:
    """A sentence with the three changes most likely to help this spec, the most likely first.

    Args:
        on_device: An accelerator's memory ran out; else the host's.
    """
    found = list(_changes(spec, on_device))[:MOST]
    listed = "; ".join(f"({place}) {change}" for place, change in enumerate(found, 1))
    return f"Most likely to help, in this order: {listed}. The memory curves show how close each step came."


def _changes(spec: TrainingSpec, on_device: bool) -> Iterator[str]:
    share = -(-spec.batch.size // spec.gpus)
    micro = spec.batch.micro_size if isinstance(spec.batch.micro_size, int) else share
    if micro > 1:
        yield f"batch.micro_size: {max(1, min(micro, share) // 2)} (the updates stay the same)"
    if spec.activation_checkpointing != "full":
        yield "activation_checkpointing: full (the losses stay the same, a step takes about a third longer)"
    if spec.precision == "fp32" and on_device:
        yield "precision: bf16"
    if spec.gpus > 1 and spec.strategy != "fsdp" and spec.strategy != "hsdp":
        yield "strategy: fsdp (parameters, gradients and optimizer state are shared out)"
    if spec.lora_rank is None and spec.task == "causal_lm":
        yield "lora_rank: 16 (gradients and optimizer state for the adapters alone)"
    if spec.strategy in _SHARDED and on_device and not spec.fsdp.cpu_offload and spec.precision != "fp16":
        yield "fsdp.cpu_offload: true (slow, but what is not computed with lies in the host's memory)"
    if not on_device:
        yield "resources.memory_gb_per_gpu: more than now"
    yield f"gpus: {2 * spec.gpus}" + ("" if spec.strategy in _SHARDED else " with strategy fsdp")
