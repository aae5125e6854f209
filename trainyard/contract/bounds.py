"""Bounds of plain data from outside: its size, its depth, its number of values and its text. Pure functions."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

MAX_SPEC_BYTES = 256 * 1024
"""Size of a request body with a spec or a sweep, as JSON or YAML."""
MAX_DEPTH = 32
"""Levels of lists and mappings in a document."""
MAX_VALUES = 40_000
"""Values in a request body, keys included."""
MAX_SPEC_VALUES = 4000
"""Values in a spec, keys included. The largest valid spec has about 1,000."""
MAX_TEXT = 8192
"""Characters of a text in a spec; the longest that a field accepts has 4096."""


def check_plain_data(value: Any, *, max_values: int = MAX_VALUES, any_text: bool = False) -> None:
    """Check parsed JSON or YAML level by level, without recursion.

    Args:
        max_values: Maximum number of values, keys included.
        any_text: Accept halves of surrogate pairs.

    Raises:
        ValueError: The data is nested too deeply, has too many values, or a text has half of a surrogate pair, which
            UTF-8 cannot represent.
    """
    level, values = [value], 0
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list | tuple):
                inner += item
            elif isinstance(item, str) and not any_text and not item.isascii():
                _check_text(item)
        values += len(inner)
        if values > max_values:
            raise ValueError(f"has more than {max_values} values")
        if not inner:
            return
        level = inner
    raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is not a character") from None


def parse_json(body: bytes, *, max_values: int = MAX_VALUES, unique_keys: bool = False, any_text: bool = False) -> Any:
    """Parse a JSON document in UTF-8.

    Args:
        max_values: Maximum number of values, keys included.
        unique_keys: Refuse an object that has a key twice.
        any_text: Accept halves of surrogate pairs.

    Raises:
        UnicodeDecodeError: The text is not UTF-8.
        ValueError: The text is not JSON, or the document exceeds a bound.
    """
    try:
        document = json.loads(body.decode(), object_pairs_hook=_reject_duplicate_keys if unique_keys else None)
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels") from None
    check_plain_data(document, max_values=max_values, any_text=any_text)
    return document


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key in an object")
    return document


def _bounded(value: Any) -> Any:
    check_plain_data(value, max_values=MAX_SPEC_VALUES)
    return value


PlainData = Annotated[Any, BeforeValidator(_bounded)]
"""Any JSON value of at most `MAX_SPEC_VALUES` values and `MAX_DEPTH` levels."""

PlainMapping = Annotated[dict[str, Any], Field(max_length=MAX_SPEC_VALUES), BeforeValidator(_bounded)]
"""A JSON object of at most `MAX_SPEC_VALUES` values and `MAX_DEPTH` levels."""
