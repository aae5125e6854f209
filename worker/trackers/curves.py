"""The curves of one execution: the tracker of each metric, and the steps of its points."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.wire.reports import MAX_POINTS, Point
from worker.trackers.left_out import LeftOut
from worker.trackers.steps import ExecutionSteps

WANDB_SUMMARY = "wandb_summary"
"""Values that W&B's `run.summary` has and its lines do not."""
_TRACKERS = (WANDB_SUMMARY, "tensorboard", "mlflow", "wandb")
"""The order of trackers: a metric is taken from the last tracker that reports it."""
_GIVE_STEPS = frozenset({"wandb", WANDB_SUMMARY})
"""Trackers whose client counts steps if the program gives none, so that their 0 is a step."""


@dataclass
class NewPoints:
    """Points that are written next."""

    points: list[tuple[str, Point | None]] = field(default_factory=list)
    """Pairs of a metric and its point. None stands for a curve that begins again without points."""
    begun: set[str] = field(default_factory=set)
    """Metrics whose curves begin again."""

    def begin_again(self, name: str) -> None:
        self.points = [one for one in self.points if one[0] != name]
        self.begun.add(name)

    def parts(self) -> Iterator[tuple[Sequence[tuple[str, Point | None]], list[str]]]:
        """Yield the points in parts of the size of a batch, each with the curves that begin again in it."""
        left = set(self.begun)
        for start in range(0, len(self.points), MAX_POINTS):
            part = self.points[start : start + MAX_POINTS]
            names = [name for name in dict.fromkeys(name for name, _ in part) if name in left]
            left.difference_update(names)
            yield part, names


class _Zero(NamedTuple):
    """A value for which a tracker sent step 0."""

    time: datetime
    number: float

    @property
    def order(self) -> tuple[datetime, float]:
        """If a step has several values, MLflow shows the latest, then the highest."""
        return self.time, 0.0 if math.isnan(self.number) else self.number


class Curves:
    """Decides about the values of one execution, in the order in which they arrive."""

    def __init__(self, steps: ExecutionSteps) -> None:
        self.steps = steps
        self.left_out = LeftOut()
        self._trackers: dict[str, str] = {}
        """The tracker of each metric."""
        self._latest: dict[str, tuple[int | None, float, datetime]] = {}
        self._zeros: dict[str, tuple[_Zero, _Zero]] = {}
        """The first and the last value at step 0 of metrics that may have no steps."""

    def add(self, new: NewPoints, tracker: str, name: str, number: float, step: int | None, time: datetime) -> None:
        """Add the point of a value, unless it is left out or repeats the previous value.

        Args:
            name: The stored name of the metric.
            step: The step that the tracker sent; None: the program gave no step.
        """
        if step is not None and not 0 <= step <= MAX_SAFE_INT:
            self.left_out.add_step(name)
            return
        if not self.take(new, tracker, name):
            self.left_out.add_value(name, number)
            return
        latest = (step, number, time)
        if self._latest.get(name) == latest:
            return
        self._latest[name] = latest
        counts_zeros = tracker not in _GIVE_STEPS
        if counts_zeros:
            self._end_count(new, name, _Zero(time, number), step)
        assigned = self.steps.assign(name, step, counts_zeros=counts_zeros)
        new.points.append((name, Point(key=name, step=assigned, value=number, time=time)))

    def take(self, new: NewPoints, tracker: str, name: str) -> bool:
        """Return whether the metric is taken from this tracker. If it replaces another, the curve begins again."""
        before = self._trackers.setdefault(name, tracker)
        if _TRACKERS.index(tracker) < _TRACKERS.index(before):
            return False
        if before != tracker:
            self._trackers[name] = tracker
            self.left_out.replaced.add(name)
            self.begin_again(new, name)
        return True

    def begin_again(self, new: NewPoints, name: str) -> None:
        """Forget the points that were logged of a metric."""
        new.begin_again(name)
        self.steps.restart(name)
        self._latest.pop(name, None)
        self._zeros.pop(name, None)

    def _end_count(self, new: NewPoints, name: str, logged: _Zero, step: int | None) -> None:
        """Begin a counted curve again if its zeros turn out to be steps."""
        if step == 0 and self.steps.may_count(name):
            first, last = self._zeros.get(name, (logged, logged))
            self._zeros[name] = first, max(last, logged, key=lambda zero: zero.order)
        elif step and (zeros := self._zeros.pop(name, None)) and name in self.steps.counted:
            self.begin_again(new, name)
            for zero in dict.fromkeys(zeros):
                self.steps.assign(name, 0, counts_zeros=False)
                new.points.append((name, Point(key=name, step=0, value=zero.number, time=zero.time)))
