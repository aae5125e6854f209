"""Settings to change after a spec ran out of memory, the most likely to help first. Pure functions."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.contract.kinds.precisions import AUTO_ON_GPUS
from trainyard.contract.kinds.strategies import LEAST_MEMORY
from trainyard.contract.spec.changes import problems_of_change
from trainyard.contract.spec.stored_dtypes import can_be_offloaded
from trainyard.contract.spec.training_spec import TrainingSpec

MAX_CHANGES = 3


def memory_hint(spec: TrainingSpec, *, on_device: bool) -> str:
    """Return a sentence with the three changes that are most likely to help; a user's program has its own hint.

    Args:
        on_device: Whether the GPU's memory ran out; else the host's did.
    """
    if not spec.task_kind.in_loop:
        if on_device:
            return "Let the program use less memory, for example by a smaller batch."
        if (memory := spec.resources.memory_gb_per_gpu) is None:
            more = "set `resources.memory_gb_per_gpu` to more than now"
        else:
            more = f"give it more: (1) resources.memory_gb_per_gpu: {2 * memory} (twice as much)"
        return f"Let the program use less memory, for example by a smaller batch, or {more}."
    changes = [text for fields, text in _changes(spec, on_device) if _is_accepted(spec, fields)][:MAX_CHANGES]
    listed = "; ".join(f"({number}) {change}" for number, change in enumerate(changes, 1))
    return f"Most likely to help, in this order: {listed}. The memory curves show how close a step came to the limit."


def _is_accepted(spec: TrainingSpec, fields: Mapping[str, Any]) -> bool:
    return not problems_of_change(spec, fields, continues=False)


def _changes(spec: TrainingSpec, on_device: bool) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield changes that may help, as fields and as a text."""
    share = -(-spec.batch.size // spec.gpus)
    micro = spec.batch.micro_size if isinstance(spec.batch.micro_size, int) else share
    sharded = {} if spec.strategy_kind.is_sharded else {"strategy": LEAST_MEMORY}
    if micro > 1:
        half = max(1, min(micro, share) // 2)
        yield {"batch.micro_size": half}, f"batch.micro_size: {half} (same updates)"
    if spec.activation_checkpointing not in ("full", "offload"):
        text = "activation_checkpointing: full (same losses, steps about a third longer)"
        yield {"activation_checkpointing": "full"}, text
    if spec.activation_checkpointing == "full" and on_device:
        text = "activation_checkpointing: offload (same losses, the inputs of layers are in host memory)"
        yield {"activation_checkpointing": "offload"}, text
    if spec.precision_kind.computes_in_fp32 and on_device:
        yield {"precision": AUTO_ON_GPUS}, f"precision: {AUTO_ON_GPUS}"
    if spec.gpus > 1 and not spec.strategy_kind.reshards_after_forward:
        text = f"strategy: {LEAST_MEMORY} (shards parameters, gradients and optimizer state)"
        yield {"strategy": LEAST_MEMORY}, text
    if spec.lora_rank is None and spec.task_kind.writes_texts:
        yield {"lora_rank": 16}, "lora_rank: 16 (gradients and optimizer state only for the adapters)"
    if spec.lora_rank is not None and spec.lora.base_dtype == "fp32" and spec.task_kind.supports_low_bit_bases:
        text = "lora.base_dtype: bf16, or nf4 (the frozen base in a half or an eighth of the memory)"
        yield {"lora.base_dtype": "bf16"}, text
    can_offload = spec.strategy_kind.is_sharded or spec.gpus == 1
    if can_offload and on_device and not spec.fsdp.cpu_offload and can_be_offloaded(spec):
        head = f"strategy: {LEAST_MEMORY} with " if sharded else ""
        text = f"{head}fsdp.cpu_offload: true (slow, since parameters not in use stay in host memory)"
        yield {**sharded, "fsdp.cpu_offload": True}, text
    if not on_device:
        memory = spec.resources.memory_gb_per_gpu
        more = {} if memory is None else {"resources.memory_gb_per_gpu": 2 * memory}
        yield more, f"resources.memory_gb_per_gpu: {2 * memory if memory else 'more than now'}"
    text = f"gpus: {2 * spec.gpus}" + (f" with strategy: {LEAST_MEMORY}" if sharded else "")
    yield {**sharded, "gpus": 2 * spec.gpus}, text
