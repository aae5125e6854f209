"""Reports of metrics, events and checkpoints: written to the spool first, sent from a thread, never waited for."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import ValidationError

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import (
    CheckpointReport,
    EventsBatch,
    MetricsBatch,
    Point,
    Progress,
    SpoolKind,
    WorkerEvent,
)
from trainyard.contract.wire.spool import SpoolBody, format_record
from worker.reporting.spool_file import SpoolFile
from worker.reporting.spool_sender import REPORTS_REJECTED, SpoolSender

log = logging.getLogger(__name__)

_MAX_QUEUED = 50_000
"""Reports of points that may wait for the disk; further reports are dropped, and an event reports their number."""
_RETRY_SECONDS = 1.0

Level = Literal["info", "warning", "error"]


_POLL_SECONDS = 0.2
"""The writer polls: waking it would cost the training thread more than the rest of a call."""


class Reporter(Protocol):
    """Takes reports from the training thread. Every method but the two that flush returns at once."""

    def points(self, step: int, values: Mapping[str, float], progress: Progress | None = None) -> None:
        """Report metrics of a step. `values` is read later by another thread and must not be changed."""
        ...

    def event(self, type_: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None) -> None: ...

    def checkpoint(self, report: CheckpointReport) -> None: ...

    def flush(self) -> None:
        """Return when all earlier reports are written, and outlive this process."""
        ...

    def flush_to_disk(self) -> None:
        """Return when all earlier reports are durable on disk."""
        ...


class NullReporter:
    """Drops everything: used by every rank but rank 0, since global values are reported once."""

    def points(self, step: int, values: Mapping[str, float], progress: Progress | None = None) -> None:
        pass

    def event(self, type_: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None) -> None:
        pass

    def checkpoint(self, report: CheckpointReport) -> None:
        pass

    def flush(self) -> None:
        pass

    def flush_to_disk(self) -> None:
        pass

    def close(self, timeout: float) -> None:
        pass


_Points: TypeAlias = tuple[int, Mapping[str, float], Progress | None, float]
"""Step, values, progress, and seconds since 1970. After a step the caches are cold: a tuple costs the training thread a
third of the time of a dataclass with a copy of the values (bench/reporting.py)."""


@dataclass(frozen=True)
class _Event:
    type: str
    message: str
    level: Level
    data: dict[str, Any]
    time: datetime


@dataclass(frozen=True)
class _Flush:
    done: threading.Event
    to_disk: bool


class SpoolReporter:
    """Rank 0's reporter: a writer thread appends to the spool, a sender thread posts its records."""

    def __init__(
        self, layout: AttemptLayout, execution: int, resumed_from_step: int, sender: SpoolSender | None
    ) -> None:
        self._execution = execution
        self._resumed_from_step = resumed_from_step
        self._sender = sender
        self._queue: deque[_Points | _Event | CheckpointReport | _Flush | None] = deque()
        self._wake = threading.Event()
        self._seq = 0
        self._file = SpoolFile(layout.spool_file(execution))
        self._write_error: OSError | None = None
        self._dropped = 0
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="spool-writer", daemon=True)
        self._writer.start()
        if sender:
            sender.on_put_aside = self._report_put_aside
            sender.start()

    def points(self, step: int, values: Mapping[str, float], progress: Progress | None = None) -> None:
        if len(self._queue) >= _MAX_QUEUED:
            self._dropped += 1
            return
        if self._dropped:
            self._report_dropped()
        self._queue.append((step, values, progress, time.time()))

    def event(self, type_: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None) -> None:
        self._queue.append(_Event(type_, message[:4096], level, data or {}, datetime.now(UTC)))

    def checkpoint(self, report: CheckpointReport) -> None:
        self._queue.append(report)

    def flush(self) -> None:
        self._flush(to_disk=False)

    def flush_to_disk(self) -> None:
        self._flush(to_disk=True)

    def _flush(self, *, to_disk: bool) -> None:
        done = threading.Event()
        self._queue.append(_Flush(done, to_disk))
        self._wake.set()
        while not done.wait(1.0):
            if self._write_error or not self._writer.is_alive():
                raise OSError(f"the spool cannot be written: {self._write_error}")

    def close(self, timeout: float) -> None:
        """Write everything, and give the sender `timeout` seconds. Unsent reports stay in the spool."""
        self._closing.set()
        self._report_dropped()
        self._queue.append(None)
        self._wake.set()
        self._writer.join()
        if self._sender:
            self._sender.close(timeout)

    def _write(self) -> None:
        while (report := self._next()) is not None:
            if isinstance(report, _Flush):
                self._sync(report)
            elif (record := self._format(report)) and self._append(record):
                self._seq += 1
                if self._sender:
                    self._sender.wake()
        self._file.close()

    def _format(self, report: _Points | _Event | CheckpointReport) -> bytes | None:
        """Return the report's record; None if the service would reject it, which must not end this thread."""
        try:
            return format_record(self._seq, *self._body(report))
        except ValidationError as error:
            log.error("a report is invalid and is dropped: %s", error)
            return None

    def _append(self, record: bytes) -> bool:
        """Append the record, and retry on a full disk. Return False if the run ends first."""
        while True:
            try:
                self._file.append(record)
                self._write_error = None
                return True
            except OSError as error:
                if self._write_error is None:
                    log.error("the spool cannot be written, retrying: %s", error)
                self._write_error = error
                if self._closing.wait(_RETRY_SECONDS):
                    return False

    def _sync(self, flush: _Flush) -> None:
        try:
            if flush.to_disk:
                self._file.sync()
        except OSError as error:
            # The caller of `flush_to_disk` raises it; later records are written all the same.
            log.error("the spool cannot be flushed to disk: %s", error)
            self._write_error = error
        else:
            flush.done.set()

    def _report_dropped(self) -> None:
        count, self._dropped = self._dropped, 0
        if count:
            message = f"the points of {count} reports were dropped: the spool could not be written for too long"
            self.event("points_lost", message, level="warning", data={"reports": count})

    def _report_put_aside(self, count: int, reason: str) -> None:
        message = f"{count} report(s) could not be stored; they are tried again when the attempt ends; last: {reason}"
        self.event(REPORTS_REJECTED, message, level="warning", data={"count": count})

    def _next(self) -> _Points | _Event | CheckpointReport | _Flush | None:
        while not self._queue:
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()
        return self._queue.popleft()

    def _body(self, report: _Points | _Event | CheckpointReport) -> tuple[SpoolKind, SpoolBody]:
        if isinstance(report, CheckpointReport):
            return "checkpoint", report
        if isinstance(report, _Event):
            event = WorkerEvent(
                sequence=self._seq,
                type=report.type,
                level=report.level,
                message=report.message,
                data=report.data,
                time=report.time,
            )
            return "events", EventsBatch(execution=self._execution, events=(event,))
        step, values, progress, seconds = report
        at = datetime.fromtimestamp(seconds, UTC)
        return "metrics", MetricsBatch(
            execution=self._execution,
            resumed_from_step=self._resumed_from_step,
            points=tuple(Point(key=key, step=step, value=value, time=at) for key, value in values.items()),
            progress=progress,
        )
