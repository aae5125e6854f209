"""Applies the strategy of a spec to a model."""

from dataclasses import replace

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.deferred.model import DeferredModel
from worker.engine.frozen_base import held_dtype, hold_base
from worker.engine.half_parameters import split_parameters
from worker.engine.precision import COMPUTE_DTYPE, set_tf32
from worker.engine.strategies.base import ParallelModel
from worker.engine.strategies.shards import allocate_whole

SHARDED = frozenset({"zero1", "zero2", "fsdp", "hsdp"})
"""Strategies made of `fully_shard`, whose policy sets the dtypes of the forward pass."""
MANAGES_DTYPE = SHARDED | {"dp"}
"""Strategies whose model sets the dtypes of its forward pass itself."""


def parallelise(
    spec: TrainingSpec, model: nn.Module, ranks: Ranks, deferred: DeferredModel | None = None
) -> ParallelModel:
    """Move the model to the rank's device and wrap it. Gradients are sums over the ranks, not means.

    Args:
        deferred: Fills the model, or its shards, if its tensors have no memory yet.
    """
    set_tf32(spec, ranks.device)
    if (held := held_dtype(spec)) is not None:
        deferred = replace(deferred, described=deferred.tensors()) if deferred else None
        gathered_as = COMPUTE_DTYPE.get(spec.precision, torch.float32) if spec.strategy in SHARDED else None
        hold_base(model, held, gathered_as=gathered_as)
    if spec.precision == "fp8":
        from worker.engine.float8 import convert_linear_layers

        convert_linear_layers(model, ranks.device)
    if spec.strategy not in SHARDED:
        # fully_shard moves one unit at a time: a device never holds more than its shards and a whole unit.
        if deferred:
            deferred.fill(allocate_whole(model, deferred.tensors(), ranks.device))
        model.to(ranks.device)
        _convert_parameters(spec, model)
    _prepare_layers(spec, model, ranks)
    match spec.strategy:
        case "single":
            return ParallelModel(model, model)
        case "ddp":
            from worker.engine.strategies.ddp import wrap_ddp

            return wrap_ddp(spec, model, ranks)
        case "dp":
            from worker.engine.strategies.dp import wrap_dp

            return wrap_dp(spec, model, ranks)
        case "zero1" | "zero2" | "fsdp" | "hsdp":
            from worker.engine.strategies.fsdp import wrap_fsdp

            wrapped = wrap_fsdp(spec, model, ranks, deferred)
            _convert_parameters(spec, model)
            return wrapped
    raise RefusedError(f"this worker does not support strategy `{spec.strategy}`")


def _prepare_layers(spec: TrainingSpec, model: nn.Module, ranks: Ranks) -> None:
    """Add activation checkpointing and compilation to the layers. Recomputation is part of the compiled code;
    copies to host memory are outside of it."""
    offloads = spec.activation_checkpointing == "offload"
    if spec.compile and offloads:
        from worker.engine.compilation import compile_blocks

        compile_blocks(model, only_forward=True)
    if spec.activation_checkpointing != "none":
        from worker.engine.activations import checkpoint_activations

        checkpoint_activations(model, spec.activation_checkpointing, ranks.device)
    if spec.compile and not offloads:
        from worker.engine.compilation import compile_blocks

        compile_blocks(model)


def _convert_parameters(spec: TrainingSpec, model: nn.Module) -> None:
    if spec.param_dtype == "bf16":
        # The base of adapters is held as `lora.base_dtype` states.
        split_parameters(model, spec.grad_dtype, round_frozen=spec.lora_rank is None)
