"""DownsampleState of curves: a picture needs the extremes of each bucket, not every point. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from math import isfinite


def thin(steps: Sequence[int], values: Sequence[float], most: int) -> list[int]:
    """The places of at most about `most` points: of each of most/2 equal ranges of steps the smallest and the largest.

    The first and last point stay, and a value that is not finite wins over the smallest of its bucket, since it is
    what a reader must see.

    Args:
        steps: In order; a step may stand there twice.
        values: One a step.
    """
    count = len(steps)
    if count <= most or count < 3:
        return list(range(count))
    buckets = max(1, (most - 2) // 2)
    width = (steps[-1] - steps[0] + 1) / buckets
    all_finite = all(map(isfinite, values))
    kept, start = [0], 1
    for bucket in range(1, buckets + 1):
        end = bisect_left(steps, steps[0] + width * bucket, start, count - 1)
        kept += _extremes(values[start:end], start, all_finite)
        start = end
    return [*kept, count - 1]


def _extremes(values: Sequence[float], start: int, all_finite: bool) -> list[int]:
    """The places of a bucket's smallest and largest, where the first has place `start`."""
    if len(values) <= 2:
        return list(range(start, start + len(values)))
    finite = values if all_finite else [value for value in values if isfinite(value)]
    if len(finite) < len(values):
        low = next(place for place, value in enumerate(values) if not isfinite(value))
    else:
        low = values.index(min(finite))
    high = values.index(max(finite)) if finite else low
    return sorted({start + low, start + high})
