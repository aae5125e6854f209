"""The samples of a bucket: first, last, smallest, largest and the first non-finite point. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from service.metrics.downsampling.levels import LEVELS, bucket_bits

_DEFAULT_GAP = 1
_MAX_SPACING_BITS = 20

NewPoint = tuple[int, int, int, float | None, int, int, int]
"""A new point as the driver returns it: key, execution, step, value, special, time in microseconds, sequence."""


class Sample(NamedTuple):
    """A point without its key and execution. The time is in microseconds."""

    step: int
    value: float | None
    special: int
    time: int


def sample_new_points(points: Iterable[NewPoint], bits: int) -> list[Sample]:
    """Return the points of a series that `select_extremes` would select from buckets of 2**bits steps.

    Every reported point passes through here, so this is one loop over plain tuples.

    Args:
        points: New points of a series, ordered by step.
    """
    samples: list[Sample] = []
    bucket, smallest, largest = -1, 0.0, 0.0
    first: NewPoint | None = None
    last, low, high, non_finite = first, first, first, first
    for point in points:
        _, _, step, value, special, _, _ = point
        if step >> bits != bucket:
            samples += _distinct(first, last, low, high, non_finite)
            bucket, first, low, high, non_finite = step >> bits, point, None, None, None
        last = point
        if special or value is None:
            non_finite = non_finite or point
        elif low is None:
            low = high = point
            smallest = largest = value
        elif value < smallest:
            low, smallest = point, value
        elif value > largest:
            high, largest = point, value
    return samples + _distinct(first, last, low, high, non_finite)


def _distinct(*points: NewPoint | None) -> list[Sample]:
    return sorted({Sample(*point[2:6]) for point in points if point is not None})


def select_extremes(points: Sequence[Sample]) -> list[Sample]:
    """Return the first, last, smallest, largest and first non-finite point of a bucket, ordered by step."""
    if len(points) <= 2:
        return list(points)
    finite = [point for point in points if point.special == 0]
    selected = {points[0], points[-1]}
    if finite:
        selected |= {min(finite, key=_value), max(finite, key=_value)}
    if len(finite) < len(points):
        selected.add(next(point for point in points if point.special))
    return sorted(selected)


def _value(point: Sample) -> float:
    assert point.value is not None
    return point.value


def sample_levels(points: Sequence[Sample], spacing_bits: int) -> Iterator[list[Sample]]:
    """Yield the samples of each level, from the lowest.

    The extremes of a bucket are among the extremes of the narrower buckets in it.

    Args:
        points: The points of a series, ordered by step.
    """
    samples = list(points)
    for level in range(LEVELS):
        samples = sample_buckets(samples, bucket_bits(level, spacing_bits))
        yield samples


def sample_buckets(points: Iterable[Sample], bits: int) -> list[Sample]:
    """Return the samples of buckets of 2**bits steps; the points are ordered by step."""
    buckets = groupby(points, key=lambda point: point.step >> bits)
    return [sample for _, bucket in buckets for sample in select_extremes(list(bucket))]


def merge_samples(existing: Iterable[Sample], new: Iterable[Sample], bits: int) -> list[Sample]:
    """Return the samples of the buckets of 2**bits steps that have new samples.

    At a step with two samples, the new sample is taken.

    Args:
        existing: The current samples of at least these buckets.
    """
    new = list(new)
    changed = {point.step >> bits for point in new}
    by_step = {point.step: point for point in existing if point.step >> bits in changed}
    by_step.update((point.step, point) for point in new)
    return sample_buckets(sorted(by_step.values()), bits)


def estimate_spacing_bits(steps: Iterable[int]) -> int:
    """Return the median distance between a series' points as a power of two."""
    distinct = sorted(set(steps))
    gaps = sorted(later - earlier for earlier, later in pairwise(distinct))
    gap = gaps[len(gaps) // 2] if gaps else _DEFAULT_GAP
    return min(gap.bit_length() - 1, _MAX_SPACING_BITS)
