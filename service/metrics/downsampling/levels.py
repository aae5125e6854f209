"""Which stretches of steps to read, from which width of buckets, so that the answer is exact at every border. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LEVELS = 6
_FIRST_SHIFT = 6
_SHIFT_BETWEEN = 3
RAW = -1
"""In place of a level: the points themselves."""
ENDLESS = 2**62


def width_shift(level: int, shift: int) -> int:
    """Buckets of a level are two to the power of this many steps wide.

    The finest holds about 64 points where points are 2**shift steps apart; each coarser one is eight times as wide.
    """
    return _FIRST_SHIFT + _SHIFT_BETWEEN * level + shift


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps `first` to `last`, both included, of one execution, read at one level."""

    execution: int
    level: int
    first: int
    last: int


def visible(resumed: Mapping[int, int], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """What is seen of each execution within these steps, as (execution, first, last).

    Args:
        resumed: The step that each execution started from; it hides later steps of lower ones.
    """
    cut = ENDLESS
    for execution in sorted(resumed, reverse=True):
        if first <= min(last, cut):
            yield execution, first, min(last, cut)
        cut = min(cut, resumed[execution])


def choose_level(span: int, shift: int, most: int) -> int:
    """The coarsest level that still has a bucket for every four of the `most` points wanted; RAW where none has."""
    for level in reversed(range(LEVELS)):
        if span >> width_shift(level, shift) >= most / 4:
            return level
    return RAW


def cover(execution: int, first: int, last: int, level: int, shift: int, *, finest: int = RAW) -> list[Piece]:
    """Pieces that hold exactly these steps: whole buckets at `level`, what is left at the ends at finer ones.

    Args:
        finest: The level at which borders need not fall on buckets any more.
    """
    if first > last:
        return []
    if level <= finest:
        return [Piece(execution, finest, first, last)]
    bits = width_shift(level, shift)
    start = -(-first >> bits) << bits
    end = last if last >= ENDLESS else ((last + 1) >> bits << bits) - 1
    if start > end:
        return cover(execution, first, last, level - 1, shift, finest=finest)
    return [
        *cover(execution, first, start - 1, level - 1, shift, finest=finest),
        Piece(execution, level, start, end),
        *cover(execution, end + 1, last, level - 1, shift, finest=finest),
    ]
