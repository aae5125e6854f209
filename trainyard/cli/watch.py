"""Following one job to its end: a live bar on a terminal, plain lines elsewhere, JSON lines for programs."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from rich.cells import cell_len
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from trainyard.cli.errors import CANCELLED, FAILED, INTERRUPTED
from trainyard.cli.output import console, one_line, print_error, print_json, print_line
from trainyard.cli.run_state import JOINT, RunState
from trainyard.client import Client, StreamEvent, TrainyardError
from trainyard.contract.wire.jobs import JobResource

PLAIN_INTERVAL = 5.0
"""Seconds between two lines of progress where there is no terminal."""


class View(Protocol):
    """Shows a run as it goes. Entered before the first event, left after the last."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...

    def show(self, event: StreamEvent) -> None: ...

    def notice(self, text: str) -> None: ...


_STATUS, _BAR, _SHORT_BAR, _GAPS = 10, 20, 8, 2
_WIDE = 100
"""Columns of a terminal that holds the whole bar beside the words."""


def fit_line(parts: Sequence[str], room: int) -> str:
    """As many of the first parts as one line holds: half a number would read as another one."""
    return next((line for n in range(len(parts), 0, -1) if cell_len(line := JOINT.join(parts[:n])) <= room), "")


def wrap_lines(parts: Sequence[str], room: int) -> list[str]:
    """All parts, on as many lines as they need."""
    lines: list[str] = []
    for part in parts:
        longer = JOINT.join((*lines[-1:], part))
        lines[-1:] = [longer] if cell_len(longer) <= room else [*lines[-1:], part]
    return lines


class _Values(ProgressColumn):
    """What is told beside the bar: while the run goes on, what fits into its line; at the end all of it."""

    def __init__(self, room: Callable[[str], int]) -> None:
        super().__init__()
        self._room = room

    def render(self, task: Task) -> Text:
        room = self._room(task.fields["status"])
        if task.fields["over"]:
            return Text("\n".join(wrap_lines(task.fields["parts"], room)))
        return Text(fit_line(task.fields["parts"], room), no_wrap=True)


class LiveView:
    """A progress bar that stays at the foot, and a line above it for what happens."""

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
        line = self._state.fold(event)
        if line is not None:
            self.notice(line)
        self._refresh()

    def notice(self, text: str) -> None:
        self._bar.console.print(Text(one_line(text)))

    def _refresh(self) -> None:
        state = self._state
        self._bar.update(
            self._task,
            completed=state.step,
            total=state.total,
            parts=state.parts(),
            status=one_line(state.status),
        )


class PlainView:
    """A line when something changes, and one of progress now and then."""

    def __init__(self, job: JobResource, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = RunState.of(job)
        self._clock = clock
        self._shown_at = clock()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None and self._state.step:
            self._progress()

    def show(self, event: StreamEvent) -> None:
        line = self._state.fold(event)
        if line is not None:
            print_line(line)
        if self._state.step and self._clock() - self._shown_at >= PLAIN_INTERVAL:
            self._progress()

    def notice(self, text: str) -> None:
        print_line(text)

    def _progress(self) -> None:
        self._shown_at = self._clock()
        summary = self._state.summary()
        if summary != self._shown:
            self._shown = summary
            print_line(summary)


class JsonView:
    """Every event as it came."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None: ...

    def show(self, event: StreamEvent) -> None:
        print_json({"id": event.id, "type": event.type, "data": event.data.model_dump(mode="json")})

    def notice(self, text: str) -> None:
        print_error(text)


def make_view(job: JobResource, *, as_json: bool = False) -> View:
    if as_json:
        return JsonView()
    return LiveView(job) if sys.stdout.isatty() else PlainView(job)


def follow(client: Client, job: JobResource, view: View, after: int | None = None) -> JobResource:
    """Show the run until it is over; the job as it ended. `after`: what came up to there in its stream is left out."""

    def waiting(error: TrainyardError, _delay: float) -> None:
        if not lost:
            view.notice(f"connection lost, waiting for the service: {error.message}")
        lost.append(error)

    lost: list[TrainyardError] = []
    with view:
        for event in client.stream(job.id, last_event_id=after, logs=False, on_retry=waiting):
            if lost:
                view.notice("reconnected")
                lost.clear()
            view.show(event)
    return client.job(job.id).resource


def watch(client: Client, job: JobResource, *, as_json: bool, after: int | None = None) -> int:
    """Follow the job, from its beginning or from `after` on, and say how it ended; the exit code of the command."""
    try:
        ended = follow(client, job, make_view(job, as_json=as_json), after)
    except KeyboardInterrupt:
        print_error(f"stopped watching; the job continues. To cancel it: trainyard cancel {job.id}")
        return INTERRUPTED
    code = print_outcome(ended, as_json=as_json)
    if ended.status == "failed" and not as_json:
        # What was refused as it is would be again.
        again = "" if ended.status_reason == "rejected" else f"; run it again: trainyard retry {job.id}"
        print_error(f"details: trainyard show {job.id}{again}")
    return code


def print_outcome(job: JobResource, *, as_json: bool = False) -> int:
    """The last line about a job that is over, and the exit code for it."""
    match job.status:
        case "succeeded":
            if not as_json:
                print_line(f"succeeded; see its metrics with: trainyard metrics {job.id}")
            return 0
        case "cancelled":
            print_error(f"cancelled: {job.status_message}")
            return CANCELLED
    print_error(f"{job.status}: {job.status_message}")
    for line in error_lines(job):
        print_error(line)
    return FAILED


def error_lines(job: JobResource) -> list[str]:
    """Which rank failed first, with what, and what to try."""
    error = job.error
    if error is None:
        return []
    if error.message == job.status_message:
        # Said already, with the status.
        return [f"hint: {error.hint}"] if error.hint else []
    rank = "" if error.rank is None else f" on rank {error.rank}"
    host = f" ({error.host})" if error.host else ""
    first = f"first error{rank}{host}: {error.type}: {error.message}"
    return [first, f"hint: {error.hint}"] if error.hint else [first]
