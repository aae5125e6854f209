"""Records of text data that hold no example, and what all formats do with the fields of a record."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_BLANK_LINES = 1000
"""Blank lines in a row. Each costs time to read, and holds nothing."""
TOO_MANY_BLANK = f"is one of more than {MAX_BLANK_LINES} blank lines in a row"
HALF_PAIR = (
    "has half of a surrogate pair, which is no character",
    "Remove escapes such as \\ud83d that are not followed by their second half.",
)
"""Problem and hint of a record with text that tokenizers cannot encode."""


class BadRecordError(ValueError):
    """A record that holds no example of its format. The message says why, and quotes nothing of it."""

    def __init__(self, problem: str, hint: str | None = None, *, expected: str | None = None, detail: str = "") -> None:
        text = f"{problem}: expected one JSON object with {expected}" if expected else problem
        super().__init__(f"{text}; {detail}" if detail else text)
        self.is_misfit = expected is not None
        self.hint = hint or "Correct that line, or set data.format."


def unreadable(reason: str, expected: str) -> BadRecordError:
    """Return the error about a record that is no JSON, or too large."""
    return BadRecordError(reason, expected=expected if "JSON" in reason else None)


def misfit(format: str, expected: str, detail: str = "") -> BadRecordError:
    """Return the error about a record that does not have a format."""
    return BadRecordError(f"does not have format `{format}`", expected=expected, detail=detail)


def json_problem(error: json.JSONDecodeError) -> str:
    """Return what is wrong with a line, and at which of its characters, counted from 1."""
    # The parser passes the end of the line and the white space before it.
    position = min(error.pos, len(error.doc.rstrip())) + 1
    return f"is not JSON: {error.msg.removesuffix(' at').rstrip(': ')} at character {position}"


def json_list(value: Any) -> list[Any] | None:
    """Return a list, which tables may hold as JSON text; None if it is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, list) else None


def without_nulls(value: Any) -> Any:
    """Return JSON data without the fields of objects that are null, which tables have for every field of any row."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def strings_in(value: Any) -> Iterator[str]:
    """Yield every text of JSON data, the names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from strings_in(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from strings_in(inner)


def is_encodable(text: str) -> bool:
    """Return whether tokenizers can encode a text; JSON may escape half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
