"""What the engine tells the outside: written to the spool first, sent from a thread, never waited for."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias

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
from worker.reporting.spool_sender import SpoolSender

log = logging.getLogger(__name__)

_MOST_WAITING = 50_000
"""Reports of points that wait for the disk; what comes on top is dropped, and told of."""
_AGAIN_SECONDS = 1.0

Level = Literal["info", "warning", "error"]


_PICK_UP_SECONDS = 0.2
"""The writer looks for itself: to wake it would cost the training thread more than all the rest of a call."""


class Reporter(Protocol):
    """The engine's way to speak. Every method but `flush_to_disk` returns at once."""

    def points(self, step: int, values: Mapping[str, float], progress: Progress | None = None) -> None:
        """What was measured at a step. `values` may be read at any later time, and is not to be changed."""
        ...

    def event(self, type_: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None) -> None: ...

    def checkpoint(self, report: CheckpointReport) -> None: ...

    def flush_to_disk(self) -> None:
        """Return when everything said so far would survive the loss of the machine."""
        ...


class NullReporter:
    """For every rank but the first: what is global is said once."""

    def points(self, step: int, values: Mapping[str, float], progress: Progress | None = None) -> None:
        pass

    def event(self, type_: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None) -> None:
        pass

    def checkpoint(self, report: CheckpointReport) -> None:
        pass

    def flush_to_disk(self) -> None:
        pass

    def close(self, timeout: float) -> None:
        pass


_Points: TypeAlias = tuple[int, Mapping[str, float], Progress | None, float]
"""Step, values, progress, and seconds since 1970. After a step the caches are cold: a tuple costs the training thread a
third of what an object of our own with a copy of the values does (bench/reporting.py)."""


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


class SpoolReporter:
    """Rank 0's reporter: a writer thread appends to the spool, a sender thread posts what is in it."""

    def __init__(
        self, layout: AttemptLayout, execution: int, resumed_from_step: int, sender: SpoolSender | None
    ) -> None:
        self._execution = execution
        self._resumed_from_step = resumed_from_step
        self._sender = sender
        self._said: deque[_Points | _Event | CheckpointReport | _Flush | None] = deque()
        self._wake = threading.Event()
        self._seq = 0
        path = layout.spool_file(execution)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without a buffer: what could not be written must not come later by itself.
        self._file = path.open("ab", buffering=0)
        self._stuck: OSError | None = None
        self._dropped = 0
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="spool-writer", daemon=True)
        self._writer.start()
        if sender:
            sender.start()

    def points(self, step: int, values: Mapping[str, float], progress: Progress | None = None) -> None:
        if len(self._said) >= _MOST_WAITING:
            self._dropped += 1
            return
        if self._dropped:
            self._tell_of_gaps()
        self._said.append((step, values, progress, time.time()))

    def event(self, type_: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None) -> None:
        self._said.append(_Event(type_, message[:4096], level, data or {}, datetime.now(UTC)))

    def checkpoint(self, report: CheckpointReport) -> None:
        self._said.append(report)

    def flush_to_disk(self) -> None:
        done = threading.Event()
        self._said.append(_Flush(done))
        self._wake.set()
        while not done.wait(1.0):
            if self._stuck or not self._writer.is_alive():
                raise OSError(f"the spool cannot be written: {self._stuck}")

    def close(self, timeout: float) -> None:
        """Write everything, and give the sender `timeout` seconds to get it through. The rest stays in the spool."""
        self._closing.set()
        self._tell_of_gaps()
        self._said.append(None)
        self._wake.set()
        self._writer.join()
        if self._sender:
            self._sender.close(timeout)

    def _write(self) -> None:
        with self._file:
            while (said := self._next()) is not None:
                if isinstance(said, _Flush):
                    os.fsync(self._file.fileno())
                    said.done.set()
                elif self._append(format_record(self._seq, *self._body(said))):
                    self._seq += 1
                    if self._sender:
                        self._sender.wake()
            os.fsync(self._file.fileno())

    def _append(self, record: bytes) -> bool:
        """Whole or not at all. A full disk is waited for, beside the training; False when the run ends before."""
        start = os.fstat(self._file.fileno()).st_size
        while True:
            try:
                rest = memoryview(record)
                while rest:
                    rest = rest[self._file.write(rest) :]
                self._stuck = None
                return True
            except OSError as error:
                if self._stuck is None:
                    log.error("the spool cannot be written, and is tried again: %s", error)
                self._stuck = error
                os.ftruncate(self._file.fileno(), start)
                if self._closing.wait(_AGAIN_SECONDS):
                    return False

    def _tell_of_gaps(self) -> None:
        count, self._dropped = self._dropped, 0
        if count:
            message = f"the points of {count} reports are lost: the spool could not be written for too long"
            self.event("points_lost", message, level="warning", data={"reports": count})

    def _next(self) -> _Points | _Event | CheckpointReport | _Flush | None:
        while not self._said:
            self._wake.wait(_PICK_UP_SECONDS)
            self._wake.clear()
        return self._said.popleft()

    def _body(self, said: _Points | _Event | CheckpointReport) -> tuple[SpoolKind, SpoolBody]:
        if isinstance(said, CheckpointReport):
            return "checkpoint", said
        if isinstance(said, _Event):
            event = WorkerEvent(
                sequence=self._seq,
                type=said.type,
                level=said.level,
                message=said.message,
                data=said.data,
                time=said.time,
            )
            return "events", EventsBatch(execution=self._execution, events=(event,))
        step, values, progress, seconds = said
        at = datetime.fromtimestamp(seconds, UTC)
        return "metrics", MetricsBatch(
            execution=self._execution,
            resumed_from_step=self._resumed_from_step,
            points=tuple(Point(key=key, step=step, value=value, time=at) for key, value in values.items()),
            progress=progress,
        )
