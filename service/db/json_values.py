"""Decoding of JSON columns."""

import json
from typing import Any


class Undecodable:
    """The value of a JSON column whose text is not JSON. Each use of it as an object or a list raises an error."""


UNDECODABLE = Undecodable()


def decode_json(text: str) -> Any:
    """Return the value of a stored text, or `UNDECODABLE`.

    An error would fail the whole query, and so the reader of every other row in its result.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNDECODABLE
