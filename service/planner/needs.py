"""What a run needs beside the GPU's memory: the host's, and disk. Pure."""

from service.planner.memory import Memory
from service.planner.outline import Outline
from service.planner.trained import Adapted
from trainyard.contract.plans import DiskNeed
from trainyard.contract.spec import TrainingSpec

INTERPRETER = 2**30
"""Of the host's memory: Python with torch and its libraries, on each rank; a rough figure."""


def host_bytes(spec: TrainingSpec, outline: Outline, adapted: Adapted, memory: Memory | None, *, cpu: bool) -> int:
    """For each rank: the whole model in fp32 while it is built, a share of a checkpoint that is staged, and on a
    machine without GPUs everything."""
    staged = _trained_state(spec, adapted) // spec.gpus if spec.checkpoint.asynchronous else 0
    training = staged + (memory.host if memory else 0) + (memory.peak if cpu and memory else 0)
    return INTERPRETER + max(4 * outline.count, training)


def disk_need(spec: TrainingSpec, adapted: Adapted) -> DiskNeed:
    """Checkpoints hold what is trained and its moments in fp32; while one is written there is one more than kept."""
    checkpoint, kept = spec.checkpoint, spec.checkpoint.keep_last + 1
    kept += int(checkpoint.keep_best is not None)
    merged = spec.lora_rank is None or spec.lora.merge
    whole = adapted.outline.count - (adapted.trained_count if spec.lora_rank is not None else 0)
    export = 4 * (whole if merged else adapted.trained_count) if checkpoint.export else 0
    each = _trained_state(spec, adapted)
    if checkpoint.every_steps is None:
        # One at the end, and one where the run was stopped before.
        kept = min(kept, 2)
    return DiskNeed(checkpoint_bytes=each, checkpoints=kept, export_bytes=export, total_bytes=each * kept + export)


def _trained_state(spec: TrainingSpec, adapted: Adapted) -> int:
    moments = 2 if spec.optimizer.name != "sgd" else int(spec.optimizer.momentum > 0)
    return 4 * (1 + moments) * adapted.trained_count
