"""Applies the strategy of a spec to a model."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from trainyard.contract.kinds.strategies import Strategy
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.deferred.model import DeferredModel
from worker.engine.frozen_base import held_dtype, hold_base
from worker.engine.half_parameters import split_parameters
from worker.engine.precision import COMPUTE_DTYPE, set_tf32
from worker.engine.strategies.base import ParallelModel
from worker.engine.strategies.shards import allocate_whole


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
        gathered_as = COMPUTE_DTYPE.get(spec.precision, torch.float32) if spec.strategy_kind.is_sharded else None
        hold_base(model, held, gathered_as=gathered_as)
    if spec.precision_kind.converts_linear_layers:
        from worker.engine.float8 import convert_linear_layers

        convert_linear_layers(model, ranks.device)
    if not spec.strategy_kind.is_sharded:
        # fully_shard moves one unit at a time: a device never holds more than its shards and a whole unit.
        if deferred:
            deferred.fill(allocate_whole(model, deferred.tensors(), ranks.device))
        model.to(ranks.device)
        _convert_parameters(spec, model)
    _prepare_layers(spec, model, ranks)
    wrap = WRAPPERS.get(spec.strategy)
    if wrap is None:
        raise RefusedError(f"this worker does not support strategy `{spec.strategy}`")
    wrapped = wrap(spec, model, ranks, deferred)
    if spec.strategy_kind.is_sharded:
        _convert_parameters(spec, model)
    return wrapped


def _prepare_layers(spec: TrainingSpec, model: nn.Module, ranks: Ranks) -> None:
    """Add activation checkpointing and compilation to the layers. Recomputation is part of the compiled code;
    copies to host memory are outside of it."""
    offloads = spec.activation_checkpointing == "offload"
    if spec.compile is True and offloads:
        from worker.engine.compilation import compile_blocks

        compile_blocks(model, only_forward=True)
    if spec.activation_checkpointing != "none":
        from worker.engine.activations import checkpoint_activations

        checkpoint_activations(model, spec.activation_checkpointing, ranks.device)
    if spec.compile is True and not offloads:
        from worker.engine.compilation import compile_blocks

        compile_blocks(model)


def _convert_parameters(spec: TrainingSpec, model: nn.Module) -> None:
    if spec.param_dtype == "bf16":
        # The base of adapters is held as `lora.base_dtype` states.
        split_parameters(model, spec.grad_dtype, round_frozen=spec.lora_rank is None)


def _wrap_whole(
    spec: TrainingSpec, model: nn.Module, ranks: Ranks, deferred: DeferredModel | None = None
) -> ParallelModel:
    return ParallelModel(model, model)


def _wrap_copies(
    spec: TrainingSpec, model: nn.Module, ranks: Ranks, deferred: DeferredModel | None = None
) -> ParallelModel:
    from worker.engine.strategies.dp import wrap_dp

    return wrap_dp(spec, model, ranks)


def _wrap_in_buckets(
    spec: TrainingSpec, model: nn.Module, ranks: Ranks, deferred: DeferredModel | None = None
) -> ParallelModel:
    from worker.engine.strategies.ddp import wrap_ddp

    return wrap_ddp(spec, model, ranks)


def _wrap_shards(
    spec: TrainingSpec, model: nn.Module, ranks: Ranks, deferred: DeferredModel | None = None
) -> ParallelModel:
    from worker.engine.strategies.fsdp import wrap_fsdp

    return wrap_fsdp(spec, model, ranks, deferred)


WRAPPERS: dict[Strategy, Callable[[TrainingSpec, nn.Module, Ranks, DeferredModel | None], ParallelModel]] = {
    "single": _wrap_whole,
    "dp": _wrap_copies,
    "ddp": _wrap_in_buckets,
    "zero1": _wrap_shards,
    "zero2": _wrap_shards,
    "fsdp": _wrap_shards,
    "hsdp": _wrap_shards,
}
"""What each strategy does with a model on its device; a sharded one moves it itself."""
