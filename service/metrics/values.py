"""Point values as they are stored and reported. Pure functions."""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

PointRow = tuple[str, int, float | None, int, int, int | None]
"""Key, step, value, special, time in microseconds, and position of one reported point."""

SPOOL_SHIFT, RECORD_SHIFT = 46, 10
"""A position is the number of a spool, of a record in it, and of a point in the record, in 17, 36 and 10 bits. Of two
points from one spool, the program logged the one with the higher position later."""

NAN, INFINITY, MINUS_INFINITY = 1, 2, 3
_NAN = float("nan")
# One object: a NaN that is a member of a tuple compares equal only to itself.
_NON_FINITE = {INFINITY: float("inf"), MINUS_INFINITY: float("-inf")}
_JSON_TEXT = {NAN: "NaN", INFINITY: "Infinity", MINUS_INFINITY: "-Infinity"}


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


def encode_value(value: float) -> tuple[float | None, int]:
    """Return a value as (number, special). SQLite stores NaN as NULL, so non-finite values are stored by code."""
    if isfinite(value):
        return value, 0
    if value != value:
        return None, NAN
    return None, INFINITY if value > 0 else MINUS_INFINITY


def decode_value(value: float | None, special: int) -> float:
    """Return the number that `encode_value` encoded."""
    if special == 0 and value is not None:
        return value
    return _NON_FINITE.get(special, _NAN)


def json_value(value: float) -> float | str:
    """Return a value as JSON: non-finite numbers are strings."""
    number, special = encode_value(value)
    return _JSON_TEXT[special] if number is None else number


def latest_values(rows: Sequence[PointRow]) -> dict[str, Any]:
    """Return the value of each key at its highest step, as JSON values: non-finite numbers are strings."""
    latest: dict[str, PointRow] = {}
    for row in rows:
        known = latest.get(row[0])
        if known is None or row[1] >= known[1]:
            latest[row[0]] = row
    return {key: row[2] if row[3] == 0 else _JSON_TEXT[row[3]] for key, row in latest.items()}
