"""The launcher's part in a `script` job, whose ranks are the user's program: it sends the reports and writes the exit
record."""

import contextlib
import re
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.reports import ExitReason, FinishRecord
from worker.core.errors import RankError, describe_foreign_error, write_error
from worker.core.rank_exits import RankExit, read_rank_exits
from worker.launcher.exit_record import last_execution, last_step
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender

_TAIL_BYTES = 16 * 1024
_EXCEPTION_LINE = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<message>.*)$"
)
_ABORTED = "terminate called without an active exception"
"""gloo's threads, where the process ends with an error while they still run: that is not the cause."""
_CLOSING_SECONDS = 0.5


class ScriptReports:
    """Sends what `trainyard.script` appends to the spool of the current execution."""

    def __init__(self, layout: AttemptLayout, first: int, connect: Callable[[], ServiceClient]) -> None:
        self._layout = layout
        self._first = first
        self._connect = connect
        self._execution = 0
        self._size = 0
        self._sender: SpoolSender | None = None

    def follow(self) -> None:
        """Notice an in-place restart and new records. Called periodically."""
        execution = last_execution(self._layout, self._first)
        if execution != self._execution:
            self.close(_CLOSING_SECONDS)
            self._execution, self._size = execution, 0
            self._sender = SpoolSender(self._layout, execution, self._connect)
            self._sender.start()
        with contextlib.suppress(FileNotFoundError):
            size = self._layout.spool_file(execution).stat().st_size
            if self._sender and size != self._size:
                self._size = size
                self._sender.wake()

    def close(self, timeout: float) -> None:
        if self._sender:
            self._sender.close(timeout)
            self._sender = None


def finalize_script(layout: AttemptLayout, first: int, returncode: int, reason: str | None) -> None:
    """Write what a built-in task's ranks write themselves: an exit record, or an error file for each rank that failed.

    Args:
        returncode: The exit code of torchrun.
        reason: The reason of the stop request, if there was one.
    """
    execution = last_execution(layout, first)
    if returncode == 0:
        exit_reason: ExitReason = "completed"
        if layout.yielded(execution).exists():
            exit_reason = reason or "preempted"  # type: ignore[assignment]  # what the launcher wrote itself
        record = FinishRecord(
            execution=execution,
            reason=exit_reason,
            step=last_step(layout, execution),
            restarts=execution - first,
            time=datetime.now(UTC),
        )
        write_atomic(layout.finish(execution), record.model_dump_json())
        return
    for rank_exit in read_rank_exits(layout, execution):
        log_path = layout.rank_log(rank_exit.rank)
        if rank_exit.exitcode > 0 or (rank_exit.exitcode == -signal.SIGABRT and _raised_before_abort(log_path)):
            write_error(layout.rank_error(rank_exit.rank), _describe(layout, rank_exit, execution))


def _raised_before_abort(log: Path) -> bool:
    """Return whether the program raised an exception before the process was aborted while it exited."""
    lines = ["", "", *_tail(log).splitlines()]
    return lines[-1] == _ABORTED and _EXCEPTION_LINE.match(lines[-2]) is not None


def _describe(layout: AttemptLayout, rank_exit: RankExit, execution: int) -> RankError:
    """Return the error from torchrun's error file if the program wrote one (`@record`), else from the log's end."""
    tail = _tail(layout.rank_log(rank_exit.rank))
    line = rank_exit.message or next((line for line in reversed(tail.splitlines()) if _EXCEPTION_LINE.match(line)), "")
    match = _EXCEPTION_LINE.match(line)
    type_ = match["type"] if match else "ScriptFailed"
    message = match["message"] if match else line or f"the program ended with exit code {rank_exit.exitcode}"
    return describe_foreign_error(
        type_,
        message,
        traceback=rank_exit.traceback or tail,
        rank=rank_exit.rank,
        execution=execution,
        time=rank_exit.time,
        host=socket.gethostname(),
        pid=rank_exit.pid,
    )


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
