"""Watching a job: a progress bar on a terminal (`live_view.py`), plain lines elsewhere, JSON lines with --json."""

import sys
import time
from typing import Protocol, Self

from trainyard.cli.errors import CANCELLED, FAILED, INTERRUPTED
from trainyard.cli.output import print_error, print_json, print_line
from trainyard.cli.run_state import RunState
from trainyard.cli.spec_changes import fix_lines
from trainyard.client import Client, StreamEvent, TrainyardError
from trainyard.contract.kinds.tasks import LOOP_TASKS, task_kind
from trainyard.contract.wire.jobs import JobResource

LINE_INTERVAL_SECONDS = 5.0
"""Seconds between two lines of progress without a terminal."""


class View(Protocol):
    """Shows the events of a run. Entered before the first event and exited after the last."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...

    def show(self, event: StreamEvent) -> None: ...

    def notice(self, text: str) -> None: ...


class PlainView:
    """A line for each event, and a line of progress every few seconds."""

    def __init__(self, job: JobResource) -> None:
        self._state = RunState.of(job)
        self._shown_at = time.monotonic()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None and self._state.step:
            self._progress()

    def show(self, event: StreamEvent) -> None:
        line = self._state.update_from(event)
        if line is not None:
            print_line(line)
        if self._state.step and time.monotonic() - self._shown_at >= LINE_INTERVAL_SECONDS:
            self._progress()

    def notice(self, text: str) -> None:
        print_line(text)

    def _progress(self) -> None:
        self._shown_at = time.monotonic()
        summary = self._state.summary()
        if summary != self._shown:
            self._shown = summary
            print_line(summary)


class JsonView:
    """Each event as a line of JSON."""

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
    if not sys.stdout.isatty():
        return PlainView(job)
    from trainyard.cli.live_view import LiveView  # It needs Rich.

    return LiveView(job)


def follow(client: Client, job: JobResource, view: View, after: int | None = None) -> JobResource:
    """Show the run from sequence number `after` on until the job has ended; return the job."""

    def on_retry(error: TrainyardError, _delay: float) -> None:
        if not lost:
            view.notice(f"connection lost, waiting for the service: {error.message}")
        lost.append(error)

    lost: list[TrainyardError] = []
    with view:
        for event in client.stream(job.id, last_event_id=after, logs=False, on_retry=on_retry):
            if lost:
                view.notice("reconnected")
                lost.clear()
            view.show(event)
    return client.job(job.id).resource


def watch(client: Client, job: JobResource, *, as_json: bool, after: int | None = None) -> int:
    """Watch the job from sequence number `after` on, print its outcome, and return the exit code."""
    try:
        ended = follow(client, job, make_view(job, as_json=as_json), after)
    except KeyboardInterrupt:
        print_error(f"stopped watching; the job continues. To cancel it: trainyard cancel {job.id}")
        return INTERRUPTED
    code = print_outcome(ended, as_json=as_json)
    if ended.status == "failed" and not as_json:
        # A rejected job would be rejected again.
        hint = "" if ended.status_reason == "rejected" else f"; run it again: trainyard retry {job.id}"
        print_error(f"details: trainyard show {job.id}{hint}")
    return code


def print_outcome(job: JobResource, *, as_json: bool = False) -> int:
    """Print the outcome of a job that has ended and return the exit code."""
    match job.status:
        case "succeeded":
            if not as_json:
                print_line(f"succeeded; see its metrics with: trainyard metrics {job.id}")
            return 0
        case "cancelled":
            print_error(f"cancelled: {job.status_message}")
            _print_checkpoint(job)
            return CANCELLED
    print_error(f"{job.status}: {job.status_message}")
    for line in error_lines(job):
        print_error(line)
    _print_checkpoint(job)
    return FAILED


def _print_checkpoint(job: JobResource) -> None:
    if hint := export_hint(job):
        print_error(f"newest checkpoint: step {job.last_checkpoint_step}{hint}")


def export_hint(job: JobResource) -> str:
    """Return how to make a model of the newest checkpoint, if the job ended before it wrote an export."""
    ended_early = job.status in ("failed", "cancelled") and job.last_checkpoint_step is not None
    return f"; make a model of it: trainyard export {job.id}" if ended_early and job.spec["task"] in LOOP_TASKS else ""


def error_lines(job: JobResource) -> list[str]:
    """Return the lines about the first error: the user's own line, the last output, a hint, and fixes as differences.

    The error itself is left out where the status message states it.
    """
    error, summary = job.error, job.failure_summary
    if error is None:
        return []
    rank = "" if error.rank is None else f" on rank {error.rank}"
    host = f" ({error.host})" if error.host else ""
    stated = job.status_message.rstrip(".") in (error.message.rstrip("."), error.summary.rstrip("."))
    lines = [] if stated else [f"first error{rank}{host}: {error.text}"]
    if summary is not None and summary.frame is not None:
        frame = summary.frame
        lines.append(f"{frame.file}, line {frame.line}, in {frame.function}")
        lines += [f"    {line}" for line in frame.source.splitlines()]
    if error.rank and task_kind(job.spec["task"]).runs_program:
        lines.append(f"log of rank {error.rank}: trainyard logs {job.id} --rank {error.rank}")
    if summary is not None and summary.last_lines:
        lines += ["last output:", *(f"    {line}" for line in summary.last_lines)]
    if error.hint:
        lines.append(f"hint: {error.hint}")
    if summary is not None:
        lines += [line for fix in summary.fixes for line in fix_lines(job, fix)]
    return lines
