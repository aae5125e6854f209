"""A pass over the held-out examples."""

import numpy as np
import torch

from trainyard.contract.spec.sections import Evaluation
from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.data.sampler import micro_batches
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.tasks.base import Task


@torch.no_grad()
def evaluate(
    task: Task,
    model: ParallelModel,
    precision: Precision,
    ranks: Ranks,
    progress: ProgressCounter,
    *,
    options: Evaluation,
    training_size: int,
) -> dict[str, float]:
    """Return the means of the task's evaluation sums over the held-out examples, by metric name. Each example counts
    once, for any number of ranks. A collective.

    Args:
        training_size: Examples that a rank computes at once in training, whose memory is known to suffice.
    """
    held_out = np.arange(min(task.examples.held_out, options.limit or task.examples.held_out), dtype=np.int64)
    size = options.micro_size or training_size
    sums: dict[str, torch.Tensor] = {}  # by metric, fp64, shape ()
    model.module.eval()
    for share in micro_batches(held_out, ranks.rank, ranks.world, size):
        progress.mark("evaluating")
        # Every rank makes as many forwards, because the forward of a sharded model is a collective.
        batch = task.examples.held_out_batch(share if len(share) else held_out[:1], ranks.device)
        with precision.autocast():
            batch_sums = task.evaluation_sums(model.evaluation_module, batch)
        for key, value in batch_sums.items():
            value = value.double() * float(len(share) > 0)
            sums[key] = sums[key] + value if key in sums else value
    model.release()
    model.module.train()
    rows = ranks.gather([float(value.item()) for value in sums.values()])
    weights = {"eval/loss": task.weight(held_out + task.examples.train)}
    totals = (sum(column) for column in zip(*rows, strict=True))
    return {key: total / weights.get(key, len(held_out)) for key, total in zip(sums, totals, strict=True)}
