"""The queue between requests and the writer thread: bounded in bytes and emptied in groups of batches."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import structlog

from service.core.errors import InvalidRequestError, ServiceError, TooManyRequestsError, UnavailableError
from service.metrics.ingest.decode import PointBatch
from service.metrics.ingest.repository import InsertResult
from service.metrics.ingest.writer import Outcome, PointWriter

GROUP_POINTS = 5000
"""A group takes no further batch once it has this many points."""
LINGER_SECONDS = 0.004
"""Longest time to wait for the senders of the last group to send again. The wait is never longer than the last write:
the cost of small batches is mostly the cost of their groups."""
IDLE_SECONDS = 5.0
"""The writer thread ends after this much time without work; the next batch starts another."""


@dataclass(slots=True)
class _QueuedBatch:
    attempt_id: str
    batch: PointBatch
    size: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome]


class IngestQueue:
    """Accepts batches from any event loop and completes each after its commit."""

    def __init__(self, writer: PointWriter, clock: Callable[[], datetime], *, limit_bytes: int):
        """
        Args:
            limit_bytes: Total size of the request bodies that are queued or being written.
        """
        self._writer = writer
        self._clock = clock
        self._limit = limit_bytes
        self._queue: deque[_QueuedBatch] = deque()
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()
        """The same by attempt. One attempt has at most half of the queue."""
        self._changed = threading.Condition()
        self._running = False
        self._min_batches = 1
        """The writer thread is woken once this many batches are queued."""
        self._expected = 1
        self._linger_until = 0.0

    @property
    def known_keys(self) -> dict[str, int]:
        """Metric names that were stored before, and are therefore valid, with their numbers."""
        return self._writer.known_keys

    async def submit(self, attempt_id: str, batch: PointBatch, size: int) -> InsertResult:
        """Store a batch whose request body has `size` bytes. Returns after the commit.

        Raises:
            TooManyRequestsError: The queue is full; nothing was stored.
            UnavailableError: The database did not answer; nothing was stored.
            ServiceError: The batch was rejected.
        """
        loop = asyncio.get_running_loop()
        queued = _QueuedBatch(attempt_id, batch, size, loop, loop.create_future())
        with self._changed:
            if self._bytes and self._bytes + size > self._limit:
                raise TooManyRequestsError("the queue of metrics to write is full; send the batch again")
            own = self._bytes_of[attempt_id]
            if own and own + size > self._limit // 2:
                raise TooManyRequestsError("other batches of this attempt are still being written; send it again")
            self._bytes += size
            self._bytes_of[attempt_id] += size
            self._queue.append(queued)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="point-writer", daemon=True).start()
            if len(self._queue) >= self._min_batches:
                self._changed.notify()
        outcome = await queued.future
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome

    def _run(self) -> None:
        while group := self._next_group():
            started = time.monotonic()
            outcomes = self._write(group)
            with self._changed:
                self._bytes -= sum(queued.size for queued in group)
                written: Counter[str] = Counter()
                for queued in group:
                    written[queued.attempt_id] += queued.size
                self._bytes_of -= written
                self._update_linger(group, time.monotonic() - started)
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Outcome], Outcome]]] = {}
            for queued, outcome in zip(group, outcomes, strict=True):
                by_loop.setdefault(queued.loop, []).append((queued.future, outcome))
            for loop, results in by_loop.items():
                with suppress(RuntimeError):  # the loop is closed: no request is waiting
                    loop.call_soon_threadsafe(_complete, results)

    def _update_linger(self, written: Sequence[_QueuedBatch], seconds: float) -> None:
        """Expect the senders of small batches to send again soon; `seconds` is the duration of the last write."""
        small = sum(len(queued.batch.rows) for queued in written) < GROUP_POINTS / 2
        self._expected = len(written) + len(self._queue) if small else 1
        self._linger_until = time.monotonic() + min(LINGER_SECONDS, seconds)

    def _wait_for_batches(self, count: int, seconds: float) -> bool:
        """Wait until `count` batches are queued; return False after the given time."""
        self._min_batches = count
        return self._changed.wait_for(lambda: len(self._queue) >= count, seconds)

    def _next_group(self) -> list[_QueuedBatch]:
        """Return the next batches up to the size of a group; an empty list ends the thread."""
        with self._changed:
            self._wait_for_batches(self._expected, self._linger_until - time.monotonic())
            if not self._wait_for_batches(1, IDLE_SECONDS):
                self._running = False
                return []
            group, points = [], 0
            while self._queue and points < GROUP_POINTS:
                queued = self._queue.popleft()
                group.append(queued)
                points += len(queued.batch.rows)
            return group

    def _write(self, group: Sequence[_QueuedBatch]) -> Sequence[Outcome]:
        try:
            return self._writer.write([(queued.attempt_id, queued.batch) for queued in group], self._clock())
        except InvalidRequestError as error:
            # One batch has a value that the database cannot represent; the others must not fail with it.
            return [error] if len(group) == 1 else [outcome for queued in group for outcome in self._write([queued])]
        except ServiceError as error:
            return [error] * len(group)
        except Exception as error:
            # The thread must survive: without it every later batch would wait forever.
            structlog.get_logger("ingest").error("failed to write a group of points", exc_info=error)
            return [UnavailableError("the points could not be written", code="database")] * len(group)


def _complete(results: Sequence[tuple[asyncio.Future[Outcome], Outcome]]) -> None:
    for future, outcome in results:
        if not future.done():
            future.set_result(outcome)
