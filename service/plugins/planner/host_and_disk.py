"""Host memory and disk of a run. Pure functions."""

from service.plugins.planner.frozen_base import held_parameters
from service.plugins.planner.optimizer_state import stored_bytes, tensors_per_parameter
from service.plugins.planner.step_sizes import Memory
from service.plugins.planner.task_models import has_head_of_task
from service.plugins.planner.trainable_parameters import TrainableModel
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.plans import DiskNeed

INTERPRETER = 2**30
"""Host memory of Python with torch and its libraries, in bytes per rank; a rough figure."""
SHARD_BYTES = 2_200
"""Checkpoint overhead for each piece of a tensor: its archive and its index entry. At most 1960 was measured."""
RANK_BYTES = 32_000
"""Checkpoint overhead for each rank: generator states and the last file block. 24 KiB were measured."""
FIXED_BYTES = 16_000
"""Checkpoint overhead for progress and manifest."""
HEADER_BYTES, CONFIG_BYTES = 200, 16_000
"""Export overhead for each tensor's header entry, and for the configuration."""


def host_bytes(spec: TrainingSpec, trainable: TrainableModel, memory: Memory | None, *, cpu: bool) -> int:
    """Return the host memory of one rank in bytes.

    It covers the start, the rank's share of a checkpoint that is staged for an asynchronous write, offloaded state, and
    on CPU ranks the whole training step.
    """
    start = start_bytes(spec, trainable, cpu=cpu)
    staged = _trained_state(spec, trainable) // spec.gpus if spec.checkpoint.asynchronous else 0
    training = staged + (memory.host if memory else 0) + (memory.peak if cpu and memory else 0)
    return INTERPRETER + max(start, training)


def start_bytes(spec: TrainingSpec, trainable: TrainableModel, *, cpu: bool) -> int:
    """Return the bytes of parameters in host memory at the start.

    With a sharded strategy, or a base that is not held in fp32, the model is drawn or read tensor by tensor and stored
    on the device. Otherwise, and if its tensors are not known to be stored in the worker's form, the whole model is
    built in fp32.
    """
    structure, held = trainable.structure, held_parameters(spec, trainable)
    # The models of other tasks are loaded whole, since their heads may be new.
    one_by_one = (spec.strategy_kind.is_sharded or held.base_dtype != "fp32") and not has_head_of_task(spec)
    if not one_by_one or not (structure.transformer or structure.sizes):
        return 4 * structure.count
    shards = spec.gpus // spec.fsdp.replicas if spec.strategy_kind.is_sharded else 1
    on_host = -(-held.total // shards) if cpu or spec.fsdp.cpu_offload else 0
    return on_host + held.read()


def disk_need(spec: TrainingSpec, trainable: TrainableModel) -> DiskNeed:
    """Return upper bounds of the disk space in the run directory.

    A checkpoint holds the trained parameters and their average in fp32, and their moments. While a checkpoint is
    written, there are `keep_last` and one more. Files that an export copies from the model's folder, such as the
    tokenizer, are not counted.
    """
    checkpoint, count = spec.checkpoint, spec.checkpoint.keep_last + 1
    count += int(checkpoint.keep_best is not None)
    merged = spec.lora_rank is None or spec.lora.merge
    whole = trainable.structure.count - (trainable.trained_count if spec.lora_rank is not None else 0)
    weights = 4 * (whole if merged else trainable.trained_count)
    export = weights + HEADER_BYTES * len(trainable.structure.parameters) + CONFIG_BYTES if checkpoint.export else 0
    each = _trained_state(spec, trainable) + _overhead(spec, trainable)
    if checkpoint.every_steps is None:
        # A checkpoint at the end of the run, and one from an earlier stop.
        count = min(count, 2)
    return DiskNeed(checkpoint_bytes=each, checkpoints=count, export_bytes=export, total_bytes=each * count + export)


def _trained_state(spec: TrainingSpec, trainable: TrainableModel) -> int:
    return 4 * trainable.trained_count + stored_bytes(spec, trainable)


def _overhead(spec: TrainingSpec, trainable: TrainableModel) -> int:
    """Return the bytes of a checkpoint beside its tensors, which dominate for small models."""
    # Each tensor has its moments and a step count; a sharded tensor is stored in parts, one per rank.
    shards = (
        len(trainable.trained)
        * (2 + tensors_per_parameter(spec.optimizer) + int(spec.ema is not None))
        * (spec.gpus if spec.strategy_kind.is_sharded else 1)
    )
    return SHARD_BYTES * shards + RANK_BYTES * spec.gpus + FIXED_BYTES
