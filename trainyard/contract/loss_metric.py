"""Selects the metric that is shown as a job's loss in tables, on pages and in `watch`. Pure functions."""

import re
from collections.abc import Iterable

ENGINE_LOSS = "train/loss"
TRAIN_LOSS = "train loss"
"""Name of the training loss in tables, on pages and in `watch`, whichever metric it is."""
_PREFERRED = (
    *(ENGINE_LOSS, "loss", "train_loss", "Loss/train", "loss/train", "training_loss", "train/train_loss"),
    *("training/loss", "train.loss", "trainer/loss"),
)
_WORD = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_NOT_TRAINING = frozenset({"eval", "evaluation", "val", "valid", "validation", "dev", "test", "best", "ema"})
SYSTEM_METRICS = ("system/", "perf/", "memory/", "comm/")
"""Beginnings of the names of metrics about how a run proceeds, and not about what it learns."""


def choose_loss(names: Iterable[str]) -> str | None:
    """Return the metric that is the training loss; None if there is none.

    It is the first existing metric among `train/loss`, `loss`, `train_loss`, `Loss/train`, `loss/train`,
    `training_loss`, `train/train_loss`, `training/loss`, `train.loss` and `trainer/loss`, or else the shortest name
    that ends in `loss` and has no word of an evaluation, such as `eval`, `val` or `test`; ties are resolved
    alphabetically.
    """
    known = set(names)
    chosen = next((name for name in _PREFERRED if name in known), None)
    if chosen is not None:
        return chosen
    return min(filter(_is_loss, known), key=lambda name: (len(name), name), default=None)


def shown_name(metric: str, loss_metrics: Iterable[str | None]) -> str:
    """Return `train loss` if the metric is among these training losses of jobs, else its own name."""
    return TRAIN_LOSS if metric == ENGINE_LOSS or metric in set(loss_metrics) else metric


def _is_loss(name: str) -> bool:
    if not name.lower().endswith("loss") or name.startswith(SYSTEM_METRICS):
        return False
    return _NOT_TRAINING.isdisjoint(word.lower() for word in _WORD.findall(name))
