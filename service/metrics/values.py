"""Numbers that SQLite has no word for. Pure."""

from math import isfinite

NAN, INFINITY, MINUS_INFINITY = 1, 2, 3
_NAN = float("nan")
"""One object: only by being the same is a NaN equal to itself, as a member of a tuple."""
_ODD = {INFINITY: float("inf"), MINUS_INFINITY: float("-inf")}


def encode_value(value: float) -> tuple[float | None, int]:
    """A value as (number, special): SQLite stores NaN as NULL, so what is not finite is named instead."""
    if isfinite(value):
        return value, 0
    if value != value:
        return None, NAN
    return None, INFINITY if value > 0 else MINUS_INFINITY


def decode_value(value: float | None, special: int) -> float:
    """The inverse of `encode_value`."""
    if special == 0 and value is not None:
        return value
    return _ODD.get(special, _NAN)
