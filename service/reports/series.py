"""Thinning of curves: a picture needs the extremes of each bucket, not every point. Pure."""

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar


class HasStepAndValue(Protocol):
    """A point of a curve."""

    @property
    def step(self) -> int: ...

    @property
    def value(self) -> float: ...


P = TypeVar("P", bound=HasStepAndValue)


def thin(points: Sequence[P], most: int) -> list[P]:
    """At most about `most` points: of each of most/2 equal ranges of steps the smallest and the largest value.

    The first and last point stay, and a value that is not finite wins over the smallest of its bucket, since it is
    what a reader must see. Order by step is kept.
    """
    if len(points) <= most or len(points) < 3:
        return list(points)
    buckets = max(1, (most - 2) // 2)
    first, last = points[0].step, points[-1].step
    width = (last - first + 1) / buckets
    kept: list[P] = [points[0]]
    start = 1
    for bucket in range(buckets):
        end = start
        limit = first + width * (bucket + 1)
        while end < len(points) - 1 and points[end].step < limit:
            end += 1
        kept.extend(_extremes(points[start:end]))
        start = end
    return [*kept, points[-1]]


def _extremes(points: Sequence[P]) -> list[P]:
    if len(points) <= 2:
        return list(points)
    finite = [point for point in points if math.isfinite(point.value)]
    odd = next((point for point in points if not math.isfinite(point.value)), None)
    low = odd or min(finite, key=lambda point: point.value)
    high = max(finite, key=lambda point: point.value, default=low)
    return [low] if low.step == high.step else sorted((low, high), key=lambda point: point.step)
