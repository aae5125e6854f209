"""The mean of a value over a global batch, which the loss of each of its examples needs."""

from collections.abc import Callable

import numpy as np
import torch

from worker.core.distributed import Ranks
from worker.data.sampler import Indices, micro_batches
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.tasks.base import Task


@torch.no_grad()
def set_shared_mean(
    task: Task,
    model: ParallelModel,
    precision: Precision,
    ranks: Ranks,
    batch: Indices,
    size: int | None,
    mark: Callable[[], None],
) -> None:
    """Give the task the mean over a global batch. A collective.

    Args:
        batch: Training or held-out examples, the same on every rank: int64, shape (n,).
        size: Examples that a rank computes at once; None for its whole share.
        mark: Called before each forward.
    """
    total = torch.zeros((), device=ranks.device)
    for positions in micro_batches(np.arange(len(batch)), ranks.rank, ranks.world, size):
        mark()
        # Every rank makes as many forwards, because the forward of a sharded model is a collective.
        some = positions if len(positions) else np.zeros(1, dtype=np.int64)
        tensors = task.shared_batch(batch, some, ranks.device)
        with precision.autocast():
            total += task.shared_sum(model.evaluation_module, tensors) * float(len(positions) > 0)
    task.set_shared_mean(ranks.sum(total) / max(1, len(batch)))
