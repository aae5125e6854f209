"""Output to the terminal: sanitized text, tables, JSON lines. Text from a server cannot move the cursor."""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard.contract.sizes import format_size

R = TypeVar("R", bound=BaseModel)

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # Control sequences: colours, cursor moves.
    # Titles, links and device strings. They exclude introducers: else each one would be matched up to the text's end.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x1b\x07\x90\x98\x9c-\x9f]*(?:\x07|\x9c|\x1b\\)"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile(r"[\n\u2028\u2029]")

_NO_WRAP = re.compile(r"[a-z]+_[0-9a-z]{26}|[0-9a-hjkmnp-tv-z]{8}|ty-\S+|step-\d+|[▁-█x]{2,}")
"""An id, a checkpoint's folder or a curve, which must not be broken over two lines."""
_GAP = 2
_SHORT_ID = 8
_MIN_COLUMN_WIDTH = 20

_STATUS_STYLE = {"succeeded": "green", "running": "cyan", "failed": "red", "lost": "red", "cancelled": "yellow"}


class TerminalConsole(Console):
    """A console without markup, which raises BrokenPipeError for a closed pipe instead of exiting."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def is_terminal(*, stderr: bool = False) -> bool:
    return (sys.stderr if stderr else sys.stdout).isatty()


def console(*, stderr: bool = False) -> TerminalConsole:
    """Return a new console. Lines are not wrapped if the output is not a terminal."""
    width = None if is_terminal(stderr=stderr) else 1000
    return TerminalConsole(stderr=stderr, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


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
    """Print one line on stdout."""
    print(one_line(text), flush=True)


def print_error(text: str) -> None:
    """Print one line on stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    """Print text of the service, sanitized."""
    sys.stdout.write(sanitize(text))
    sys.stdout.flush()


def print_json(resource: BaseModel | dict[str, Any]) -> None:
    """Print one JSON object on one line."""
    plain = resource.model_dump(mode="json", by_alias=True) if isinstance(resource, BaseModel) else resource
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
    row: Callable[[R], Sequence[str | Text]],
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


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, optional: Sequence[str] = ()) -> None:
    """Print a plain table on stdout. Ids and curves are not wrapped.

    Args:
        optional: headings of columns that are omitted, in this order, if the terminal is too narrow; a note names them.
    """
    cells = [[cell if isinstance(cell, Text) else Text(one_line(cell)) for cell in row] for row in rows]
    columns = list(zip(headings, zip(*cells, strict=True), strict=True)) if cells else [(h, ()) for h in headings]
    screen = console()
    hidden: list[str] = []
    for heading in optional:
        if sum(map(_min_column_width, columns)) <= screen.width:
            break
        hidden += [name for name, _ in columns if name == heading]
        columns = [column for column in columns if column[0] != heading]
    out = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for heading, column in columns:
        whole = any(map(_must_not_wrap, column))
        out.add_column(heading, overflow="fold", no_wrap=whole, min_width=max(map(len, column)) if whole else None)
    for row in zip(*(column for _, column in columns), strict=True):
        out.add_row(*row)
    screen.print(out)
    if hidden:
        names = ", ".join(hidden)
        print_error(f"note: {screen.width} columns have no room for {names}; use a wider terminal or --json")


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return the ids as they are shown: on a terminal their ends, as long as these differ."""
    if not is_terminal():
        return {id_: id_ for id_ in ids}
    length = next((n for n in range(_SHORT_ID, 27) if len({id_[-n:] for id_ in ids}) == len(set(ids))), 30)
    return {id_: id_[-length:] for id_ in ids}


def fits_terminal(columns: Iterable[tuple[str, Sequence[str]]]) -> bool:
    """Return whether these columns, each a heading and its cells, fit into the terminal side by side."""
    texts = [(heading, [Text(one_line(cell)) for cell in cells]) for heading, cells in columns]
    return sum(map(_min_column_width, texts)) <= console().width


def _min_column_width(column: tuple[str, Sequence[Text]]) -> int:
    """Return the minimum width of a column: its full width if it has ids or curves, else a readable part."""
    heading, cells = column
    widths = [cell.cell_len if _must_not_wrap(cell) else min(cell.cell_len, _MIN_COLUMN_WIDTH) for cell in cells]
    return max(len(heading), *widths, 0) + _GAP


def _must_not_wrap(cell: Text) -> bool:
    return _NO_WRAP.fullmatch(cell.plain) is not None


def status_text(status: str) -> Text:
    return Text(status, style=_STATUS_STYLE.get(status, ""))


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


def discard_stdout() -> None:
    """Redirect stdout to /dev/null after its reader has closed it, so that the last flush does not fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the rest of the process)
