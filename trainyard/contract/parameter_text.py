"""How filters compare the value of a parameter: numbers by value. Pure functions."""

import math
import re

Scalar = bool | int | float | str | None

MAX_INDEX_TEXT = 200
"""Characters of a value that a filter compares."""
_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,6})?\s*", re.ASCII)
_EXACT = 2**53


def index_text(value: Scalar) -> str:
    """Return the text by which filters compare a value: numbers by value as floats, also those in texts.

    `3e-4`, `0.0003` and the text `"0.0003"` give the same text; so do `true` and the text `"True"`.
    """
    if isinstance(value, str):
        if value.lower() in ("true", "false"):
            return value.lower()
        text = _number_text(value) if len(value) <= MAX_INDEX_TEXT and _NUMBER.fullmatch(value) else value
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = _number_text(str(value))
    return text[:MAX_INDEX_TEXT]


def parse_number(text: str) -> float | None:
    """Return the number that a text is; None for any other text."""
    return float(text) if len(text) <= MAX_INDEX_TEXT and _NUMBER.fullmatch(text) else None


def _number_text(text: str) -> str:
    number = float(text)
    if not math.isfinite(number):
        return text.strip()
    return str(int(number)) if number.is_integer() and abs(number) < _EXACT else repr(number)
