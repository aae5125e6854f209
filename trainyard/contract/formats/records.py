"""Errors of text records that hold no example, and access to the fields of a record for all formats."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trainyard.contract.spec.text_sources import FORMAT_FIELDS

MAX_BLANK_LINES = 1000
"""Blank lines in a row. Each costs time to read, and holds nothing."""
TOO_MANY_BLANK = f"is one of more than {MAX_BLANK_LINES} blank lines in a row"
HALF_PAIR = (
    "has half of a surrogate pair, which is no character",
    "Remove escapes such as \\ud83d that are not followed by their second half.",
)
"""Problem and hint of a record with text that tokenizers cannot encode."""
ONE_RECORD = "write each record on one line, or all of them as one JSON array"
OTHER_TEXT = "write each record as a JSON object; CSV and plain text are not read"
EXPECTED_OBJECT = ": expected one JSON object with "
"""Text before the fields of a format, in messages."""
DEFAULT_HINT = "Correct that line."
_FORMAT_HINT = "Correct that line, or set data.format, or data.columns if the fields have other names."
_OWN_FIELDS = frozenset(field for fields in FORMAT_FIELDS.values() for field in fields)
MAX_COUNTED = 1000
"""Bad records of a source that are counted before its reading ends."""
NAMED = 10
"""Bad records whose position is stated."""


class BadRecordError(ValueError):
    """A record that holds no example of its format. The message states the reason, and quotes nothing of the record."""

    def __init__(self, problem: str, hint: str | None = None, *, expected: str | None = None, detail: str = "") -> None:
        text = f"{problem}{EXPECTED_OBJECT}{expected}" if expected else problem
        super().__init__(f"{text}; {detail}" if detail else text)
        self.is_misfit = expected is not None
        self.hint = hint or (_FORMAT_HINT if self.is_misfit else DEFAULT_HINT)

    def with_detail(self, detail: str) -> "BadRecordError":
        """Return the error with a hint, if it is about a record without the fields of its format."""
        if self.is_misfit and detail:
            self.args = (f"{self}; {detail}",)
        return self


@contextmanager
def parsing(record: Any) -> Iterator[None]:
    """Turn errors of the parsing of a record into BadRecordError with the hint of `list_inside`."""
    try:
        yield
    except BadRecordError as error:
        raise error.with_detail(list_inside(record)) from None
    except RecursionError:
        raise BadRecordError("is nested too deeply") from None


def unreadable(reason: str, expected: str) -> BadRecordError:
    """Return the error about a record that is not JSON, or too large."""
    return BadRecordError(reason, expected=expected if "JSON" in reason else None)


def misfit(format: str, expected: str, detail: str = "") -> BadRecordError:
    """Return the error about a record that does not have a format."""
    return BadRecordError(f"does not have format `{format}`", expected=expected, detail=detail)


def list_inside(record: Any) -> str:
    """Return the hint for an object that holds the records in a list; empty for any other value."""
    fields = record.items() if isinstance(record, dict) else ()
    # The list of a field that formats have is a part of a record.
    lists = [value for name, value in fields if isinstance(value, list) and name not in _OWN_FIELDS]
    if len(lists) != 1 or not lists[0] or not all(isinstance(one, dict) for one in lists[0]):
        return ""
    if {"role", "from"} & lists[0][0].keys():
        return ""
    return f"it holds a list of objects; {ONE_RECORD}"


def json_problem(error: json.JSONDecodeError, *, is_first: bool = False) -> str:
    """Return the problem of a line, with the number of the character, counted from 1.

    Args:
        is_first: Whether it is the first line, which may begin an object of several lines.
    """
    # The parser passes the end of the line and the white space before it.
    text = error.doc.rstrip()
    position = min(error.pos, len(text)) + 1
    problem = f"is not JSON: {error.msg.removesuffix(' at').rstrip(': ')} at character {position}"
    if not is_first:
        return problem
    if not text.lstrip("\ufeff \t").startswith(("{", "[")):
        return f"{problem} ({OTHER_TEXT})"
    is_cut = position > len(text) and text.endswith(("{", "[", ","))
    return f"{problem} ({ONE_RECORD})" if is_cut else problem


def problems_text(problems: Sequence[tuple[str, str]]) -> str:
    """Return the positions of bad records with their problems. A problem that several records share is stated once.

    Args:
        problems: The position and the problem of each.
    """
    parts: list[str] = []
    stated: set[str] = set()
    for position, problem in problems:
        start, _, expected = problem.partition(EXPECTED_OBJECT)
        shown = ": the same" if problem in stated else start if expected in stated else problem
        parts.append(f"{position}{'' if shown.startswith(':') else ' '}{shown}")
        stated |= {problem, expected} - {""}
    return "; ".join(parts)


def counted_text(count: int, read: int, unit: str, *, whole: bool) -> str:
    """Return how many records are bad, of several.

    Args:
        read: The records that were read.
        unit: Noun for a record, such as `line`.
        whole: Whether all were read.
    """
    if whole:
        return f"{count} of {read} {unit}s are bad"
    number = f"more than {MAX_COUNTED}" if count > MAX_COUNTED else f"at least {count}"
    return f"{number} of the first {read} {unit}s are bad"


def json_list(value: Any) -> list[Any] | None:
    """Return a list, which tables may hold as JSON text; None for other values."""
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
