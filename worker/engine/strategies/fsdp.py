"""Sharded data parallelism (ZeRO, arXiv:1910.02054): zero1, zero2, fsdp and hsdp, all made of `fully_shard`."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from trainyard.contract.kinds.strategies import StrategyKind
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.distributed import Ranks
from worker.deferred.model import DeferredModel
from worker.engine.frozen_base import held_dtype
from worker.engine.precision import COMPUTE_DTYPE
from worker.engine.strategies.base import ParallelModel
from worker.engine.strategies.shards import allocate_shards
from worker.engine.strategies.units import head_unit, parameter_footprint, plan_units
from worker.tasks.language_loss import summed_loss_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FsdpModel(ParallelModel):
    """A model whose parameters are sharded DTensors outside its forward and backward."""

    strategy: StrategyKind

    @contextlib.contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Whole gradients and parameters stay until the last micro-batch, and replicas are summed only then; otherwise
        the gradients of every micro-batch are reduce-scattered."""
        if self.strategy.accumulates_whole_gradients:
            self._root.set_requires_gradient_sync(last)
            self._root.set_reshard_after_backward(last)
        if self.strategy.replicates_shards:
            self._root.set_requires_all_reduce(last)
        yield

    def norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        partial = super().norm(gradients)
        return partial.full_tensor() if isinstance(partial, DTensor) else partial

    def _norms(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        # Of the shards themselves: torch 2.15 refuses the dtype of a norm of DTensors.
        local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
        squares = super()._norms(local) ** 2
        first = gradients[0]
        if isinstance(first, DTensor):
            for dimension, placement in enumerate(first.placements):
                if placement.is_shard():
                    dist.all_reduce(squares, group=first.device_mesh.get_group(dimension))
        return squares.sqrt()

    def release(self) -> None:
        for unit in _units(self.module):
            unit.reshard()

    @property
    def _root(self) -> FSDPModule:
        assert isinstance(self.module, FSDPModule)
        return self.module


def wrap_fsdp(spec: TrainingSpec, model: nn.Module, ranks: Ranks, deferred: DeferredModel | None = None) -> FsdpModel:
    """Shard a model in place, unit by unit, and fill its shards if it is deferred. Gradients are sums over all
    ranks."""
    tensors = deferred.tensors() if deferred else {}
    mesh = _mesh(spec, ranks)
    policy = _policy(spec)
    reshard_after_forward = spec.strategy_kind.reshards_after_forward
    units = plan_units(model, spec.fsdp)
    footprint = parameter_footprint(
        model,
        units,
        rank=mesh.get_local_rank("shard"),
        shards=mesh["shard"].size(),
        reshard_after_forward=reshard_after_forward,
    )
    log.info("sharding units of %s parameters", ", ".join(str(unit.size) for unit in units if unit.size))
    log.info("this rank holds %d parameters, and at most %d at once", footprint.sharded, footprint.peak)
    offload: dict[str, Any] = {"offload_policy": CPUOffloadPolicy()} if spec.fsdp.cpu_offload else {}
    for unit in units:
        fully_shard(
            model.get_submodule(unit.module),
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=reshard_after_forward and not unit.stays,
            **offload,
        )
    if (head := head_unit(model, units)) is not None:
        head.summed_loss = partial(summed_loss_of, head)  # type: ignore[assignment]
        # One gathering for all chunks of the loss.
        register_fsdp_forward_method(head, "summed_loss")
    if deferred:
        destinations = allocate_shards(
            model,
            tensors,
            device=torch.device("cpu") if spec.fsdp.cpu_offload else ranks.device,
            buffer_device=ranks.device,
            rank=mesh.get_local_rank("shard"),
            shards=mesh["shard"].size(),
        )
        deferred.fill(destinations)
    _prefetch([model.get_submodule(unit.module) for unit in units], spec.fsdp.prefetch)
    for module in _units(model):
        _sum_gradients(module)
    return FsdpModel(model, model, spec.strategy_kind)


def _prefetch(units: list[nn.Module], ahead: int) -> None:
    """Make each unit's forward and backward start to gather the next units. The last unit is the root, which torch
    gathers first."""
    if not ahead:
        return
    inner: list[FSDPModule] = [unit for unit in units[:-1] if isinstance(unit, FSDPModule)]
    for index, unit in enumerate(inner):
        unit.set_modules_to_forward_prefetch(inner[index + 1 : index + 1 + ahead])
        unit.set_modules_to_backward_prefetch(inner[max(0, index - ahead) : index][::-1])


def _mesh(spec: TrainingSpec, ranks: Ranks) -> DeviceMesh:
    """Return a mesh of shape (ranks,); with replicas (replicas, ranks / replicas), where each row shards the whole
    model."""
    if not spec.strategy_kind.replicates_shards:
        return init_device_mesh(ranks.device.type, (ranks.world,), mesh_dim_names=("shard",))
    shape = (spec.fsdp.replicas, ranks.world // spec.fsdp.replicas)
    return init_device_mesh(ranks.device.type, shape, mesh_dim_names=("replicate", "shard"))


def _policy(spec: TrainingSpec) -> MixedPrecisionPolicy:
    """Return the policy: trained parameters in fp32, forward and backward in the spec's precision."""
    reduced = torch.bfloat16 if spec.fsdp.reduce_dtype == "bf16" else torch.float32
    computed = COMPUTE_DTYPE.get(spec.precision, torch.float32 if held_dtype(spec) else None)
    return MixedPrecisionPolicy(param_dtype=computed, reduce_dtype=reduced)


def _sum_gradients(unit: FSDPModule) -> None:
    # The loss is already divided by the global weight. The factor alone needs an operation that gloo lacks, and gloo's
    # average is silently a sum (pytorch#162338): with both calls every backend sums.
    unit.set_force_sum_reduction_for_comms(True)
    unit.set_gradient_divide_factor(1.0)


def _units(module: nn.Module) -> Iterator[FSDPModule]:
    return (inner for inner in module.modules() if isinstance(inner, FSDPModule))
