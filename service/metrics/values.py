"""Point values in their stored and reported forms. Pure functions."""

from collections.abc import Iterable
from math import isfinite
from typing import Any

from service.core.positions import is_later

PointRow = tuple[str, int, float | None, int, int, int | None]
"""Key, step, value, special, time in microseconds, and position of a reported point."""

LatestPoint = tuple[int, int, int | None]
"""Execution, step and position of the last point of a metric."""

NAN, INFINITY, MINUS_INFINITY = 1, 2, 3
_NAN = float("nan")
# One object: a NaN that is a member of a tuple compares equal only to itself.
_NON_FINITE = {INFINITY: float("inf"), MINUS_INFINITY: float("-inf")}
_JSON_TEXT = {NAN: "NaN", INFINITY: "Infinity", MINUS_INFINITY: "-Infinity"}


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


def update_latest(
    latest: dict[str, Any], points: dict[str, LatestPoint], execution: int, rows: Iterable[PointRow]
) -> None:
    """Replace the values of metrics whose last point is among the rows.

    The last point has the highest step of the newest execution; if several points have this step, the stored point
    counts.

    Args:
        latest: The value of each metric as JSON: a number that is not finite is a text. Changed.
        points: The point of each value, if known. Changed.
    """
    for key, step, value, special, _, position in rows:
        point = (execution, step, position)
        if key not in latest or key not in points or _is_after(point, points[key]):
            latest[key] = value if special == 0 else _JSON_TEXT[special]
            points[key] = point


def _is_after(point: LatestPoint, other: LatestPoint) -> bool:
    if (point[0], point[1]) != (other[0], other[1]):
        return (point[0], point[1]) > (other[0], other[1])
    return is_later(point[2], other[2])
