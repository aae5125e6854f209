"""`ddp`: every rank holds the whole model, and gradients are summed over the ranks in buckets."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.distributed import Ranks
from worker.engine.strategies.base import ParallelModel


@dataclass(frozen=True)
class DdpModel(ParallelModel):
    """A model in DistributedDataParallel."""

    forward: DistributedDataParallel
    divisor: int
    """The number of ranks if DDP averages over them, else 1."""

    @property
    def gradient_divisor(self) -> int:
        return self.divisor

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if last else self.forward.no_sync()


def wrap_ddp(spec: TrainingSpec, model: nn.Module, ranks: Ranks) -> DdpModel:
    """Wrap a model on its device. Gradients are sums over the ranks, or averages where that loses no precision."""
    options = spec.ddp
    if options.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    wrapped = DistributedDataParallel(
        model,
        device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
        find_unused_parameters=options.find_unused_parameters,
        static_graph=options.static_graph,
        bucket_cap_mb=options.bucket_cap_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
    )
    if can_average(spec, model, ranks.world):
        return DdpModel(wrapped, model, ranks.world)
    wrapped.register_comm_hook(None, _sum)
    return DdpModel(wrapped, model, 1)


def can_average(spec: TrainingSpec, model: nn.Module, world: int) -> bool:
    """Return whether DDP's own average, of a loss multiplied by the number of ranks, is the sum to the last digit.

    It takes less time than a hook in Python, for which gloo's threads wait for the interpreter. Both factors are exact
    if the number of ranks is a power of two. In fp16 the larger loss could overflow.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    whole = all(parameter.dtype == torch.float32 for parameter in trained)
    return whole and not spec.precision_kind.scales_loss and world.bit_count() == 1


def _sum(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    # The loss is already divided by the global weight. DDP's average would divide by the number of ranks again, and
    # undoing that loses precision unless the number is a power of two.
    # Gradients in bf16 are summed in fp32, and rounded once.
    buffer = bucket.buffer()
    work = dist.all_reduce(buffer.float(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(partial(_first, buffer))
    return summed


def _first(buffer: torch.Tensor, future: Any) -> torch.Tensor:
    value: torch.Tensor = future.value()[0]
    return value if value.dtype == buffer.dtype else buffer.copy_(value)
