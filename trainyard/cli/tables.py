"""Tables and the console, which need Rich. Commands load this module only when they print to a terminal or a table."""

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainyard.cli import output
from trainyard.cli.output import StatusText, one_line, print_error

_NO_WRAP = re.compile(r"[a-z]+_[0-9a-z]{26}|[0-9a-hjkmnp-tv-z]{8}|ty-\S+|step-\d+|[▁-█x]{2,}")
"""An id, a checkpoint's folder or a curve, which must not be broken over two lines."""
_GAP = 2
_MIN_COLUMN_WIDTH = 20
_STATUS_STYLE = {"succeeded": "green", "running": "cyan", "failed": "red", "lost": "red", "cancelled": "yellow"}


class TerminalConsole(Console):
    """A console without markup, which raises BrokenPipeError for a closed pipe instead of exiting."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> TerminalConsole:
    """Return a new console. Lines are not wrapped if the output is not a terminal."""
    width = None if output.is_terminal(stderr=stderr) else 1000
    return TerminalConsole(stderr=stderr, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


def write_table(headings: Sequence[str], rows: Iterable[Sequence[str]], optional: Sequence[str]) -> None:
    """Write the table of `print_table`."""
    cells = [[_text(cell) for cell in row] for row in rows]
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


def fits_terminal(columns: Iterable[tuple[str, Sequence[str]]]) -> bool:
    """Return whether these columns, each a heading and its cells, fit into the terminal side by side."""
    texts = [(heading, [_text(cell) for cell in cells]) for heading, cells in columns]
    return sum(map(_min_column_width, texts)) <= console().width


def _text(cell: str) -> Text:
    return Text(one_line(cell), style=_STATUS_STYLE.get(cell, "") if isinstance(cell, StatusText) else "")


def _min_column_width(column: tuple[str, Sequence[Text]]) -> int:
    """Return the minimum width of a column: its full width if it has ids or curves, else a readable part."""
    heading, cells = column
    widths = [cell.cell_len if _must_not_wrap(cell) else min(cell.cell_len, _MIN_COLUMN_WIDTH) for cell in cells]
    return max(len(heading), *widths, 0) + _GAP


def _must_not_wrap(cell: Text) -> bool:
    return _NO_WRAP.fullmatch(cell.plain) is not None
