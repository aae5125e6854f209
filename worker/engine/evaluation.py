"""An evaluation: a pass over the held-out examples, which returns metrics."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from trainyard.contract.spec.sections import Evaluation
from trainyard.contract.stored_name import metric_name
from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.data.examples import Examples
from worker.data.sampler import Indices, micro_batches
from worker.engine.precision import Precision
from worker.engine.shared_mean import set_shared_mean
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
    on_examples: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, float]:
    """Return the means of the task's evaluation sums over the held-out examples, by metric name. A collective.

    Each example counts once, for any number of ranks. With several sets, `eval/loss/NAME` is the mean over the set
    NAME, and `eval/loss` the mean over all sets; likewise for other metrics.

    Args:
        training_size: The micro-batch size of the training, whose memory suffices. The default of `options.micro_size`.
        on_examples: Called with the number of evaluated examples, and the total number.
    """
    sets = held_out_sets(task.examples, options.limit)
    size = options.micro_size or training_size
    sums: dict[tuple[str, str], torch.Tensor] = {}  # by set and metric, fp64, shape ()
    done, total = 0, sum(map(len, sets.values()))
    model.module.eval()
    for name, held_out in sets.items():
        if task.shares_mean:
            mark = partial(progress.mark, "evaluating")
            set_shared_mean(task, model, precision, ranks, held_out + task.examples.train, size, mark)
        for share in micro_batches(held_out, ranks.rank, ranks.world, size):
            progress.mark("evaluating")
            # Every rank runs the same number of forward passes, because that of a sharded model is a collective.
            batch = task.examples.held_out_batch(share if len(share) else held_out[:1], ranks.device)
            with precision.autocast():
                batch_sums = task.evaluation_sums(model.evaluation_module, batch)
            for key, value in batch_sums.items():
                value = value.double() * float(len(share) > 0)
                sums[name, key] = sums[name, key] + value if (name, key) in sums else value
            done = min(total, done + size * ranks.world)
            on_examples(done, total)
    model.release()
    model.module.train()
    rows = ranks.gather([float(value.item()) for value in sums.values()])
    totals = dict(zip(sums, (sum(column) for column in zip(*rows, strict=True)), strict=True))
    return {metric_name(name): value for name, value in _means(task, sets, totals).items()}


def held_out_sets(examples: Examples, limit: int | None) -> dict[str, Indices]:
    """Return the indices of the examples to evaluate, by the name of their set. Index 0 is the first held-out example.
    A single set has an empty name."""
    sets: dict[str, Indices] = {}
    start = 0
    sizes = examples.held_out_sets or {"": examples.held_out}
    for name, size in sizes.items():
        sets[name] = np.arange(start, start + min(size, limit or size), dtype=np.int64)
        start += size
    return sets


def _means(task: Task, sets: Mapping[str, Indices], totals: Mapping[tuple[str, str], float]) -> dict[str, float]:
    means = {}
    for key in dict.fromkeys(key for _, key in totals):
        own = {name: totals[name, key] for name in sets if (name, key) in totals}
        groups = {"": (sum(own.values()), np.concatenate([sets[name] for name in own]))}
        groups |= {f"/{name}": (total, sets[name]) for name, total in own.items() if name}
        for suffix, (total, examples) in groups.items():
            # A set without examples of the kind that a metric measures does not have this metric.
            if weight := _weight(task, key, examples):
                means[f"{key}{suffix}"] = total / weight
    return task.complete_metrics(means)


def _weight(task: Task, key: str, held_out: Indices) -> float:
    """Return the divisor of a sum over these held-out examples."""
    indices = held_out + task.examples.train
    return task.weight(indices) if key == "eval/loss" else task.metric_weight(key, indices)
