"""The points of a bucket that must be kept for its picture: first, last, smallest, largest, and one odd one. Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

_SHOWN_GAP = 1


Arrival = tuple[int, int, int, float | None, int, int, int]
"""A new point as the driver gives it: key, execution, step, value, special, time, place in the job's sequence."""


class Kept(NamedTuple):
    """A point without its key and execution."""

    step: int
    value: float | None
    special: int
    time: int


def stand_outs(arrivals: Iterable[Arrival], bits: int) -> list[Kept]:
    """Of one series' new points by step, those that `keep` would choose from buckets of 2**bits steps.

    Every point that training reports passes here, so that it is one loop over plain tuples.
    """
    found: list[Kept] = []
    bucket, least, most = -1, 0.0, 0.0
    first: Arrival | None = None
    last, low, high, odd = first, first, first, first
    for arrival in arrivals:
        _, _, step, value, special, _, _ = arrival
        if step >> bits != bucket:
            found += _distinct(first, last, low, high, odd)
            bucket, first, low, high, odd = step >> bits, arrival, None, None, None
        last = arrival
        if special or value is None:
            odd = odd or arrival
        elif low is None:
            low = high = arrival
            least = most = value
        elif value < least:
            low, least = arrival, value
        elif value > most:
            high, most = arrival, value
    return found + _distinct(first, last, low, high, odd)


def _distinct(*chosen: Arrival | None) -> list[Kept]:
    return sorted({Kept(*one[2:6]) for one in chosen if one is not None})


def keep(points: Sequence[Kept]) -> list[Kept]:
    """Of one bucket's points by step, those that stand out; a value that is not finite does."""
    if len(points) <= 2:
        return list(points)
    finite = [point for point in points if point.special == 0]
    chosen = {points[0], points[-1]}
    if finite:
        chosen |= {min(finite, key=_value), max(finite, key=_value)}
    if len(finite) < len(points):
        chosen.add(next(point for point in points if point.special))
    return sorted(chosen)


def _value(point: Kept) -> float:
    assert point.value is not None
    return point.value


def merge(before: Iterable[Kept], fresh: Iterable[Kept], bits: int) -> tuple[list[Kept], list[Kept]]:
    """Fold fresh points into buckets of 2**bits steps.

    Args:
        before: What was kept so far, at least of the buckets that fresh points fall into.

    Returns:
        What is kept of the buckets that have fresh points, and what of `before` is kept no more.
    """
    by_step = {point.step: point for point in fresh}
    touched = {step >> bits for step in by_step}
    old = [point for point in before if point.step >> bits in touched]
    # A point that is there stays as it is, here as in the table of all points.
    by_step.update((point.step, point) for point in old)
    points = sorted(by_step.values())
    kept: list[Kept] = []
    for _, bucket in groupby(points, key=lambda point: point.step >> bits):
        kept += keep(list(bucket))
    stays = set(kept)
    return kept, [point for point in old if point not in stays]


def spacing(steps: Iterable[int]) -> int:
    """About how far apart a job's points are, as a power of two: of the densest series that was seen."""
    distinct = sorted(set(steps))
    gaps = sorted(later - earlier for earlier, later in pairwise(distinct))
    gap = gaps[len(gaps) // 2] if gaps else _SHOWN_GAP
    return min(gap.bit_length() - 1, 20)
