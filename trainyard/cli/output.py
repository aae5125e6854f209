"""Output to the terminal: sanitized text, tables, JSON lines. Text from a server cannot move the cursor.

Every command imports this module, so it imports neither Rich nor Pydantic.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from trainyard.contract.sizes import format_size
from trainyard.contract.terminal_text import last_written

if TYPE_CHECKING:
    from pydantic import BaseModel

R = TypeVar("R", bound="BaseModel")

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # Control sequences: colours, cursor moves.
    # Titles, links and device strings. They exclude introducers: else each introducer would be matched up to the text's
    # end.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x1b\x07\x90\x98\x9c-\x9f]*(?:\x07|\x9c|\x1b\\)"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile(r"[\n\u2028\u2029]")

_SHORT_ID = 8


class StatusText(str):
    """The status of a job, which tables colour."""


def is_terminal(*, stderr: bool = False) -> bool:
    return (sys.stderr if stderr else sys.stdout).isatty()


def sanitize(text: str) -> str:
    """Return the text without escape sequences, control characters and direction overrides; keep newlines and tabs."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """Return sanitized text with a space for each line break."""
    first, *others = _BREAKS.split(sanitize(text))
    return " ".join([first.rstrip(), *filter(None, map(str.strip, others))]).rstrip()


def escape_name(name: str) -> str:
    """Return a file's name with escapes such as `\\n` for characters that a terminal does not show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def print_line(text: str) -> None:
    """Print a line on stdout."""
    print(one_line(text), flush=True)


def print_error(text: str) -> None:
    """Print a line on stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    """Print text of the service, sanitized."""
    sys.stdout.write(sanitize(text))
    sys.stdout.flush()


class LogPrinter:
    """Writes a program's log to stdout, sanitized, and at the end of the block the rest of a line without an end.

    A terminal overwrites a line as the program does. Elsewhere, a line is written once it is complete, in its last
    state.
    """

    def __init__(self) -> None:
        self._overwrites = is_terminal()
        self._line = ""
        """The beginning of a line that is not complete."""

    def __enter__(self) -> LogPrinter:
        return self

    def __exit__(self, *error: object) -> None:
        sys.stdout.write(sanitize(last_written(self._line)))
        sys.stdout.flush()

    def write(self, text: str) -> None:
        """Write the next part of the log."""
        if self._overwrites:
            text = "\r".join(map(sanitize, text.replace("\r\n", "\n").split("\r")))
        else:
            *lines, rest = (self._line + text).split("\n")
            text = "".join(f"{sanitize(last_written(line))}\n" for line in lines)
            # Only the last state of a progress bar is held, and a return at its end, which a line break may follow.
            self._line = last_written(rest) + "\r" * rest.endswith("\r")
        sys.stdout.write(text)
        sys.stdout.flush()


def print_json(resource: BaseModel | dict[str, Any]) -> None:
    """Print a JSON object on a single line."""
    plain = resource if isinstance(resource, dict) else resource.model_dump(mode="json", by_alias=True)
    print(json.dumps(plain), flush=True)


def print_json_lines(resources: Iterable[BaseModel]) -> None:
    for resource in resources:
        print_json(resource)


def print_deleted(kind: str, id_: str, how: str, *, as_json: bool) -> None:
    """Print that a resource was deleted."""
    if as_json:
        print_json({"object": how, "id": id_})
    else:
        print_line(f"{kind} {id_}: {how}")


def print_list(
    items: Sequence[R],
    headings: Sequence[str],
    row: Callable[[R], Sequence[str]],
    *,
    as_json: bool,
    empty_message: str = "",
    optional: Sequence[str] = (),
) -> None:
    """Print items as JSON lines or as a table.

    Args:
        empty_message: message on stderr for an empty list; without it only the headings are printed.
    """
    if as_json:
        print_json_lines(items)
    elif empty_message and not items:
        print_error(empty_message)
    else:
        print_table(headings, [row(one) for one in items], optional=optional)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, optional: Sequence[str] = ()) -> None:
    """Print a plain table on stdout. Ids and curves are not wrapped.

    Args:
        optional: headings of columns that are omitted, in this order, if the terminal is too narrow; a note names them.
    """
    from trainyard.cli.tables import write_table  # Rich is loaded for a table alone.

    write_table(headings, rows, optional)


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return the displayed form of each id: on a terminal its end, long enough to be unique."""
    if not is_terminal():
        return {id_: id_ for id_ in ids}
    length = next((n for n in range(_SHORT_ID, 27) if len({id_[-n:] for id_ in ids}) == len(set(ids))), 30)
    return {id_: id_[-length:] for id_ in ids}


def format_age(time: datetime) -> str:
    """Return the age of a time, such as `3 min ago`."""
    return f"{format_duration((datetime.now(UTC) - time).total_seconds())} ago"


def format_duration(seconds: float) -> str:
    """Return a duration in at most two units: `42 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left} s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    first = next(i for i, (unit_seconds, _) in enumerate(units) if left >= unit_seconds)
    parts = []
    for unit_seconds, name in units[first : first + 2]:
        count, left = divmod(left, unit_seconds)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts)


def format_metric(metric: str, value: Any) -> str:
    """Return a metric's value as text: bytes as a size, other values as a number."""
    finite = value is not None and math.isfinite(float(value))
    return format_size(int(float(value))) if finite and metric.endswith("_bytes") else format_number(value)


def format_number(value: Any) -> str:
    """Return a short form of a number; NaN and infinities are shown as such."""
    return "-" if value is None else f"{float(value):.4g}"


def format_value(value: Any) -> str:
    """Return a value of a changed field as text."""
    return format_number(value) if isinstance(value, float) else str(value)


def discard_stdout() -> None:
    """Redirect stdout to /dev/null after its reader has closed it, so that the last flush does not fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the rest of the process)
