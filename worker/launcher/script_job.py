"""What the launcher does for a `script`, whose ranks are the user's program: send its reports, say how it ended."""

import contextlib
import json
import re
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.reports import ExitReason, FinishRecord
from worker.core.errors import RankError, describe_foreign_error, write_error
from worker.core.rank_exits import rank_exits_files
from worker.launcher.exit_record import last_execution, last_step
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender

_TAIL_BYTES = 16 * 1024
_RAISED = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<message>.*)$"
)
_ABORTED = "terminate called without an active exception"
"""gloo's threads, where the process ends with an error while they still run: it is not what went wrong."""
_CLOSING_SECONDS = 0.5


class ScriptReports:
    """Sends what `trainyard.script` appends to the spool of the execution that runs."""

    def __init__(self, layout: AttemptLayout, first: int, connect: Callable[[], ServiceClient]) -> None:
        self._layout = layout
        self._first = first
        self._connect = connect
        self._execution = 0
        self._size = 0
        self._sender: SpoolSender | None = None

    def follow(self) -> None:
        """To be called again and again: notice a restart in place, and what was written since."""
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
    """Leave what a rank of our own would have left: a finish record, or an error for each rank that failed.

    Args:
        returncode: torchrun's.
        reason: why the ranks were asked to stop, where they were.
    """
    execution = last_execution(layout, first)
    if returncode == 0:
        ended: ExitReason = "completed"
        if layout.yielded(execution).exists():
            ended = reason or "preempted"  # type: ignore[assignment]  # what the launcher wrote itself
        record = FinishRecord(
            execution=execution,
            reason=ended,
            step=last_step(layout, execution),
            restarts=execution - first,
            time=datetime.now(UTC),
        )
        write_atomic(layout.finish(execution), record.model_dump_json())
        return
    for end in _ended(layout, execution):
        if end["exitcode"] > 0 or (end["exitcode"] == -signal.SIGABRT and _had_raised(layout.rank_log(end["rank"]))):
            write_error(layout.rank_error(end["rank"]), _error_of(layout, end, execution))


def _ended(layout: AttemptLayout, execution: int) -> list[dict[str, Any]]:
    """The ranks that did not end well. Of those ended by a signal, torchrun alone tells."""
    found: list[dict[str, Any]] = []
    for path in rank_exits_files(layout, execution):
        with contextlib.suppress(OSError, ValueError):
            found += json.loads(path.read_text())
    return found


def _had_raised(log: Path) -> bool:
    """Whether an exception was the program's last word before the process was aborted on its way out."""
    lines = ["", "", *_tail(log).splitlines()]
    return lines[-1] == _ABORTED and _RAISED.match(lines[-2]) is not None


def _error_of(layout: AttemptLayout, end: dict[str, Any], execution: int) -> RankError:
    """torchrun's error file where the program wrote one (`@record`), else the last lines of its log."""
    tail = _tail(layout.rank_log(end["rank"]))
    word = end.get("message") or next((line for line in reversed(tail.splitlines()) if _RAISED.match(line)), "")
    match = _RAISED.match(word)
    type_ = match["type"] if match else "ScriptFailed"
    message = match["message"] if match else word or f"the program ended with exit code {end['exitcode']}"
    return describe_foreign_error(
        type_,
        message,
        traceback=end.get("traceback") or tail,
        rank=end["rank"],
        execution=execution,
        time=float(end["time"]),
        host=socket.gethostname(),
        pid=end["pid"],
    )


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
