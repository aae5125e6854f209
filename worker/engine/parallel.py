"""From a strategy's name to a model that computes with it."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.contract.spec import TrainingSpec
from worker.distributed import Ranks
from worker.errors import TrainingError


@dataclass(frozen=True)
class ParallelModel:
    """A model under a strategy."""

    forward: nn.Module
    """What a training step calls."""
    module: nn.Module
    """Whose names checkpoints use, and what evaluation calls."""

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """Around a micro-batch: only the last one's backward communicates."""
        if last or not isinstance(self.forward, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.forward.no_sync()


def parallelise(spec: TrainingSpec, model: nn.Module, ranks: Ranks) -> ParallelModel:
    """Place the model on the rank's device and wrap it. Gradients come out as sums over the ranks."""
    model.to(ranks.device)
    match spec.strategy:
        case "single":
            return ParallelModel(model, model)
        case "ddp":
            return _ddp(spec, model, ranks)
    raise TrainingError(f"this worker has no strategy `{spec.strategy}`")


def _ddp(spec: TrainingSpec, model: nn.Module, ranks: Ranks) -> ParallelModel:
    wrapped = DistributedDataParallel(
        model,
        device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
        find_unused_parameters=spec.ddp.find_unused_parameters,
        static_graph=spec.ddp.static_graph,
        bucket_cap_mb=spec.ddp.bucket_cap_mb,
        gradient_as_bucket_view=True,
    )
    wrapped.register_comm_hook(None, _sum)
    return ParallelModel(wrapped, model)


def _sum(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    # The loss is divided by the global count already; DDP's own average would divide by the ranks again, and
    # multiplying that out is less exact where the rank count is no power of two.
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(_first)
    return summed


def _first(future: Any) -> torch.Tensor:
    value: torch.Tensor = future.value()[0]
    return value
