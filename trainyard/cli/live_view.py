"""The view of a watched job on a terminal: a progress bar on the last line."""

from collections.abc import Callable, Sequence
from typing import Self

from rich.cells import cell_len
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from trainyard.cli.output import one_line
from trainyard.cli.run_state import SEPARATOR, RunState
from trainyard.cli.tables import console
from trainyard.client import StreamEvent
from trainyard.contract.wire.jobs import JobResource

_STATUS, _BAR, _SHORT_BAR, _GAPS = 10, 20, 8, 2
_WIDE = 100
"""Minimum number of columns for the long progress bar."""


def fit_line(parts: Sequence[str], width: int) -> str:
    """Join the first parts that fit into a line; a part is never cut, since half a number would mislead."""
    return next((line for n in range(len(parts), 0, -1) if cell_len(line := SEPARATOR.join(parts[:n])) <= width), "")


def wrap_lines(parts: Sequence[str], width: int) -> list[str]:
    """Join all parts, on as many lines as they need."""
    lines: list[str] = []
    for part in parts:
        extended = SEPARATOR.join((*lines[-1:], part))
        lines[-1:] = [extended] if cell_len(extended) <= width else [*lines[-1:], part]
    return lines


class _Values(ProgressColumn):
    """The values beside the bar: as many as fit into its line, and all of them after the end of the run."""

    def __init__(self, width: Callable[[str], int]) -> None:
        super().__init__()
        self._room = width

    def render(self, task: Task) -> Text:
        width = self._room(task.fields["status"])
        if task.fields["over"]:
            return Text("\n".join(wrap_lines(task.fields["parts"], width)))
        return Text(fit_line(task.fields["parts"], width), no_wrap=True)


class LiveView:
    """A progress bar on the last line, and a line above it for each event."""

    def __init__(self, job: JobResource) -> None:
        self._state = RunState.of(job)
        screen = console()
        width = _BAR if screen.width >= _WIDE else _SHORT_BAR
        self._bar = Progress(
            TextColumn("{task.fields[status]}", markup=False, table_column=Column(no_wrap=True, min_width=_STATUS)),
            BarColumn(bar_width=width, table_column=Column(no_wrap=True, min_width=width)),
            _Values(lambda status: screen.width - max(cell_len(status), _STATUS) - width - _GAPS),
            console=screen,
        )
        self._task = self._bar.add_task("", total=None, status=job.status, parts=[], over=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.update(self._task, over=True)
        self._bar.stop()

    def show(self, event: StreamEvent) -> None:
        line = self._state.update_from(event)
        if line is not None:
            self.notice(line)
        self._refresh()

    def notice(self, text: str) -> None:
        self._bar.console.print(Text(one_line(text)))

    def _refresh(self) -> None:
        state = self._state
        self._bar.update(
            self._task, completed=state.step, total=state.total, parts=state.parts(), status=one_line(state.status)
        )
