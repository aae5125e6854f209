"""Min-max downsampling of a curve for display. Pure functions."""

from bisect import bisect_left
from collections.abc import Sequence
from math import isfinite


def downsample_minmax(steps: Sequence[int], values: Sequence[float], max_points: int) -> list[int]:
    """Return the indices of about `max_points` points: the extremes of max_points/2 equal ranges of steps.

    The first and last points are always selected. A non-finite value is selected instead of the smallest of its range.

    Args:
        steps: In ascending order; a step may occur twice.
        values: One for each step.
    """
    count = len(steps)
    if count <= max_points or count < 3:
        return list(range(count))
    buckets = max(1, (max_points - 2) // 2)
    width = (steps[-1] - steps[0] + 1) / buckets
    all_finite = all(map(isfinite, values))
    selected, start = [0], 1
    for bucket in range(1, buckets + 1):
        end = bisect_left(steps, steps[0] + width * bucket, start, count - 1)
        selected += _extremes(values[start:end], start, all_finite)
        start = end
    return [*selected, count - 1]


def _extremes(values: Sequence[float], start: int, all_finite: bool) -> list[int]:
    """Return the indices of a bucket's smallest and largest value; the bucket's first value has index `start`."""
    if len(values) <= 2:
        return list(range(start, start + len(values)))
    finite = values if all_finite else [value for value in values if isfinite(value)]
    if len(finite) < len(values):
        low = next(index for index, value in enumerate(values) if not isfinite(value))
    else:
        low = values.index(min(finite))
    high = values.index(max(finite)) if finite else low
    return sorted({start + low, start + high})
