"""Positions of points and media in the spools of a job. Pure functions."""

from collections.abc import Iterable

SPOOL_SHIFT, RECORD_SHIFT = 46, 10
"""A position is the number of a spool, of a record in it, and of a point in the record, in 17, 36 and 10 bits. If two
points are from the same spool, the program logged the point with the higher position later."""


def positions(spool: int, records: Iterable[tuple[int, int]]) -> list[int]:
    """Return the positions of points.

    Args:
        records: The number of each record, and the number of its points.
    """
    numbers: list[int] = []
    for record, points in records:
        first = first_position(spool, record)
        numbers += range(first, first + points)
    return numbers


def first_position(spool: int, record: int) -> int:
    """Return the position of the first point of a record."""
    return spool << SPOOL_SHIFT | record << RECORD_SHIFT


def is_later(position: int | None, other: int | None) -> bool:
    """Whether a program logged the point of a position after another point. Two spools have no common order."""
    return (
        position is not None
        and other is not None
        and position > other
        and position >> SPOOL_SHIFT == other >> SPOOL_SHIFT
    )
