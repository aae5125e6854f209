"""What a run needs beside the GPU's memory: the host's, and disk. Pure."""

from service.planner.model_structure import Outline
from service.planner.step_memory import Memory
from service.planner.trainable_parameters import Adapted
from service.planner.work import SHARDED
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.plans import DiskNeed

INTERPRETER = 2**30
"""Of the host's memory: Python with torch and its libraries, on each rank; a rough figure."""
PIECE_BYTES = 2_200
"""Of a checkpoint, around each piece of a tensor: its archive and its lines in the index. At most 1960 was measured."""
RANK_BYTES = 32_000
"""Of a checkpoint, for each rank: the state of its generators, its file's last block. 25 kB were measured."""
FIXED_BYTES = 16_000
"""Of a checkpoint: progress, manifest, their last blocks."""
HEADER_BYTES, CONFIG_BYTES = 200, 16_000
"""Of an export: each tensor's entry, and what describes it."""


def host_bytes(spec: TrainingSpec, outline: Outline, adapted: Adapted, memory: Memory | None, *, cpu: bool) -> int:
    """For each rank: the whole model in fp32 while it is built, a share of a checkpoint that is staged, and on a
    machine without GPUs everything."""
    staged = _trained_state(spec, adapted) // spec.gpus if spec.checkpoint.asynchronous else 0
    training = staged + (memory.host if memory else 0) + (memory.peak if cpu and memory else 0)
    return INTERPRETER + max(4 * outline.count, training)


def disk_need(spec: TrainingSpec, adapted: Adapted) -> DiskNeed:
    """Checkpoints hold what is trained and its moments in fp32; while one is written there is one more than kept. Upper
    bounds, but for what an export copies from the model's folder beside its weights."""
    checkpoint, kept = spec.checkpoint, spec.checkpoint.keep_last + 1
    kept += int(checkpoint.keep_best is not None)
    merged = spec.lora_rank is None or spec.lora.merge
    whole = adapted.outline.count - (adapted.trained_count if spec.lora_rank is not None else 0)
    weights = 4 * (whole if merged else adapted.trained_count)
    export = weights + HEADER_BYTES * len(adapted.outline.parameters) + CONFIG_BYTES if checkpoint.export else 0
    each = _trained_state(spec, adapted) + _overhead(spec, adapted)
    if checkpoint.every_steps is None:
        # One at the end, and one where the run was stopped before.
        kept = min(kept, 2)
    return DiskNeed(checkpoint_bytes=each, checkpoints=kept, export_bytes=export, total_bytes=each * kept + export)


def _trained_state(spec: TrainingSpec, adapted: Adapted) -> int:
    return 4 * (1 + _moments(spec)) * adapted.trained_count


def _moments(spec: TrainingSpec) -> int:
    return 2 if spec.optimizer.name != "sgd" else int(spec.optimizer.momentum > 0)


def _overhead(spec: TrainingSpec, adapted: Adapted) -> int:
    """Of a checkpoint, beside the numbers themselves: what a small model's consists of."""
    # A tensor, its moments and the count of its steps; a sharded one is in as many pieces as there are ranks.
    pieces = len(adapted.trained) * (2 + _moments(spec)) * (spec.gpus if spec.strategy in SHARDED else 1)
    return PIECE_BYTES * pieces + RANK_BYTES * spec.gpus + FIXED_BYTES
