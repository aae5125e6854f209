"""Settings to change after a spec ran out of memory, the most likely to help first. Pure functions."""

from collections.abc import Iterator

from trainyard.contract.kinds.precisions import AUTO_ON_GPUS
from trainyard.contract.kinds.strategies import LEAST_MEMORY
from trainyard.contract.spec.stored_dtypes import can_be_offloaded
from trainyard.contract.spec.training_spec import TrainingSpec

MAX_CHANGES = 3


def memory_hint(spec: TrainingSpec, *, on_device: bool) -> str:
    """Return a sentence with the three changes that are most likely to help; a user's program has its own hint.

    Args:
        on_device: Whether the GPU's memory ran out; else the host's did.
    """
    if not spec.task_kind.in_loop:
        more = "" if on_device else ", or set `resources.memory_gb_per_gpu` to more than now"
        return f"Let the program use less memory, for example by a smaller batch{more}."
    changes = list(_changes(spec, on_device))[:MAX_CHANGES]
    listed = "; ".join(f"({number}) {change}" for number, change in enumerate(changes, 1))
    return f"Most likely to help, in this order: {listed}. The memory curves show how close a step came to the limit."


def _changes(spec: TrainingSpec, on_device: bool) -> Iterator[str]:
    share = -(-spec.batch.size // spec.gpus)
    micro = spec.batch.micro_size if isinstance(spec.batch.micro_size, int) else share
    if micro > 1:
        yield f"batch.micro_size: {max(1, min(micro, share) // 2)} (same updates)"
    if spec.activation_checkpointing not in ("full", "offload"):
        yield "activation_checkpointing: full (same losses, steps about a third longer)"
    if spec.activation_checkpointing == "full" and on_device:
        yield "activation_checkpointing: offload (same losses, the inputs of layers are in host memory)"
    if spec.precision_kind.computes_in_fp32 and on_device:
        yield f"precision: {AUTO_ON_GPUS}"
    if spec.gpus > 1 and not spec.strategy_kind.reshards_after_forward:
        yield f"strategy: {LEAST_MEMORY} (shards parameters, gradients and optimizer state)"
    if spec.lora_rank is None and spec.task_kind.writes_texts:
        yield "lora_rank: 16 (gradients and optimizer state only for the adapters)"
    if spec.lora_rank is not None and spec.lora.base_dtype == "fp32" and spec.task_kind.supports_low_bit_bases:
        yield "lora.base_dtype: bf16, or nf4 (the frozen base in a half or an eighth of the memory)"
    can_offload = spec.strategy_kind.is_sharded or spec.gpus == 1
    if can_offload and on_device and not spec.fsdp.cpu_offload and can_be_offloaded(spec):
        strategy = "" if spec.strategy_kind.is_sharded else f"strategy: {LEAST_MEMORY} with "
        yield f"{strategy}fsdp.cpu_offload: true (slow, since parameters not in use stay in host memory)"
    if not on_device:
        yield "resources.memory_gb_per_gpu: more than now"
    yield f"gpus: {2 * spec.gpus}" + ("" if spec.strategy_kind.is_sharded else f" with strategy {LEAST_MEMORY}")
