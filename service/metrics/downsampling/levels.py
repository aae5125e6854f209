"""Planning of reads: which ranges of steps to read from which level of buckets. Pure functions.

Level 0 has the narrowest buckets. A plan is exact at both ends of its range: it reads whole buckets, and narrower
buckets or the points themselves at the ends.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LEVELS = 6
_FIRST_LEVEL_BITS = 6
_BITS_PER_LEVEL = 3
NO_LEVEL = -1
"""Stands for the points themselves, instead of a level."""
MAX_STEP = 2**62


def bucket_bits(level: int, spacing_bits: int) -> int:
    """Return the width of a level's buckets as a power of two of steps.

    A bucket of level 0 holds about 64 points of a series whose points are 2**spacing_bits steps apart; buckets of each
    further level are eight times as wide.
    """
    return _FIRST_LEVEL_BITS + _BITS_PER_LEVEL * level + spacing_bits


@dataclass(frozen=True, slots=True)
class RangeRead:
    """A read of steps `first` to `last`, both included, of an execution at a level."""

    execution: int
    level: int
    first: int
    last: int


def visible_ranges(resumed: Mapping[int, int], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield the visible steps of each execution within a range, as (execution, first, last).

    Args:
        resumed: The step that each execution resumed from. It hides later steps of earlier executions.
    """
    cut = MAX_STEP
    for execution in sorted(resumed, reverse=True):
        if first <= min(last, cut):
            yield execution, first, min(last, cut)
        cut = min(cut, resumed[execution])


def choose_level(steps: int, spacing_bits: int, max_points: int) -> int:
    """Return the highest level with a bucket for every four of `max_points`; NO_LEVEL if there is none."""
    for level in reversed(range(LEVELS)):
        if steps >> bucket_bits(level, spacing_bits) >= max_points / 4:
            return level
    return NO_LEVEL


def plan_reads(
    execution: int, first: int, last: int, level: int, spacing_bits: int, *, lowest: int = NO_LEVEL
) -> list[RangeRead]:
    """Return reads that cover exactly these steps: whole buckets at `level`, the ends at lower levels.

    Args:
        lowest: The lowest level available. At this level, reads need not start or end at a bucket boundary.
    """
    if first > last:
        return []
    if level <= lowest:
        return [RangeRead(execution, lowest, first, last)]
    bits = bucket_bits(level, spacing_bits)
    start = -(-first >> bits) << bits
    end = last if last >= MAX_STEP else ((last + 1) >> bits << bits) - 1
    if start > end:
        return plan_reads(execution, first, last, level - 1, spacing_bits, lowest=lowest)
    return [
        *plan_reads(execution, first, start - 1, level - 1, spacing_bits, lowest=lowest),
        RangeRead(execution, level, start, end),
        *plan_reads(execution, end + 1, last, level - 1, spacing_bits, lowest=lowest),
    ]
