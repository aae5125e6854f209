"""Between the requests and the threads that write: a line of bounded size, emptied in groups."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import structlog

from service.core.errors import ServiceError, TooManyRequestsError, UnavailableError
from service.metrics.ingest.decoding import PointBatch
from service.metrics.ingest.outcome import Outcome, Stored
from service.metrics.ingest.writer import PointWriter

GROUP_POINTS = 5000
"""A group has no more batches once it has so many: what comes while it is written is the next group."""
OVERFLOW_POINTS = GROUP_POINTS // 2
"""So many that wait while a group is written are worth another writer, where the database has one."""
GATHER_SECONDS = 0.004
"""How long those who were just answered are waited for at most, and never longer than writing took: what many small
batches cost is mostly their groups."""
PATIENCE_SECONDS = 0.25
"""How long a small group waits for one that is being written: that one may be waiting for a job that somebody holds."""
IDLE_SECONDS = 5.0
"""A thread ends when there was nothing to do for so long; the next batch starts another."""


@dataclass(slots=True)
class _Waiting:
    attempt_id: str
    batch: PointBatch
    size: int
    loop: asyncio.AbstractEventLoop
    answer: Callable[[Outcome], None]
    """Called on the loop."""


class IngestQueue:
    """Takes batches from any event loop and answers each after its commit."""

    def __init__(self, writers: Sequence[PointWriter], clock: Callable[[], datetime], *, limit_bytes: int):
        """
        Args:
            writers: The first writes what comes; the others help while more waits than a moment's worth.
            limit_bytes: Of request bodies that wait or are being written.
        """
        self._writers = writers
        self._clock = clock
        self._limit = limit_bytes
        self._line: deque[_Waiting] = deque()
        self._points = 0
        """That wait."""
        self._bytes = 0
        self._changed = threading.Condition()
        self._running: set[int] = set()
        """Places of the writers that have a thread."""
        self._writing = 0
        self._wanted = 1
        """How many batches the first writer waits for."""
        self._expected = 1
        self._until = 0.0

    @property
    def known_keys(self) -> dict[str, int]:
        return self._writers[0].known_keys

    async def put(self, attempt_id: str, batch: PointBatch, size: int) -> Stored:
        """Store a batch of `size` bytes; returns after the commit.

        Raises:
            TooManyRequestsError: too much waits already; nothing was stored.
            UnavailableError: the database does not answer; nothing was stored.
            ServiceError: the batch was refused.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self.enter(attempt_id, batch, size, loop, lambda outcome: None if future.done() else future.set_result(outcome))
        outcome = await future
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome

    def enter(
        self,
        attempt_id: str,
        batch: PointBatch,
        size: int,
        loop: asyncio.AbstractEventLoop,
        answer: Callable[[Outcome], None],
    ) -> None:
        """The same for who does not wait: `answer` is called on the loop, after the commit or the refusal.

        Raises:
            TooManyRequestsError: too much waits already; nothing was stored.
        """
        waiting = _Waiting(attempt_id, batch, size, loop, answer)
        with self._changed:
            if self._bytes and self._bytes + size > self._limit:
                raise TooManyRequestsError("more points wait to be written than the service holds; send them again")
            self._bytes += size
            self._line.append(waiting)
            self._points += len(batch.rows)
            self._call()

    def _call(self) -> None:
        """Wake or start the writers that have something to do."""
        overflows = self._overflows()
        for place in range(len(self._writers) if overflows else 1):
            if place not in self._running:
                self._running.add(place)
                threading.Thread(target=self._run, args=(place,), name=f"point-writer-{place}", daemon=True).start()
        if overflows or len(self._line) >= self._wanted:
            self._changed.notify_all()

    def _overflows(self) -> bool:
        return self._writing > 0 and self._points >= OVERFLOW_POINTS

    def _ready(self) -> bool:
        """Whether the first writer has something to do: no small group beside one that is being written."""
        return bool(self._line) if self._writing == 0 else self._overflows()

    def _run(self, place: int) -> None:
        while group := self._next_group(place):
            began = time.monotonic()
            outcomes = self._write(self._writers[place], group)
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
                self._bytes -= sum(waiting.size for waiting in group)
                if place == 0:
                    self._expect(group, time.monotonic() - began)
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Callable[[Outcome], None], Outcome]]] = {}
            for waiting, outcome in zip(group, outcomes, strict=True):
                by_loop.setdefault(waiting.loop, []).append((waiting.answer, outcome))
            for loop, answers in by_loop.items():
                with suppress(RuntimeError):  # a closed loop: nobody waits any more
                    loop.call_soon_threadsafe(_answer, answers)

    def _expect(self, written: Sequence[_Waiting], seconds: float) -> None:
        """Who is answered now will soon be back, if it has more: small batches are waited for a moment."""
        small = sum(len(waiting.batch.rows) for waiting in written) < GROUP_POINTS / 2
        self._expected = len(written) + len(self._line) if small else 1
        self._until = time.monotonic() + min(GATHER_SECONDS, seconds)

    def _await(self, count: int, seconds: float) -> bool:
        """Whether so many wait, now or within that time."""
        self._wanted = count
        return self._changed.wait_for(lambda: len(self._line) >= count, seconds)

    def _next_group(self, place: int) -> list[_Waiting]:
        """What waits, up to a size; nothing when it is time to end."""
        with self._changed:
            if not (self._gather() if place == 0 else self._changed.wait_for(self._overflows, IDLE_SECONDS)):
                self._running.remove(place)
                return []
            group, points = [], 0
            while self._line and points < GROUP_POINTS:
                waiting = self._line.popleft()
                group.append(waiting)
                points += len(waiting.batch.rows)
            self._points -= points
            self._writing += 1
            self._call()
            return group

    def _gather(self) -> bool:
        """Whether anything waits, after the moment for those who will soon be back."""
        self._await(self._expected, self._until - time.monotonic())
        while self._await(1, IDLE_SECONDS):
            if self._changed.wait_for(self._ready, PATIENCE_SECONDS) or self._line:
                return True
        return False

    def _write(self, writer: PointWriter, group: Sequence[_Waiting]) -> Sequence[Outcome]:
        try:
            return writer.write([(waiting.attempt_id, waiting.batch) for waiting in group], self._clock())
        except ServiceError as error:
            return [error] * len(group)
        except Exception as error:
            # The thread must live: without it every later batch would wait for ever.
            structlog.get_logger("ingest").error("a group of points was not written", exc_info=error)
            return [UnavailableError("the points could not be written", code="database")] * len(group)


def _answer(answers: Sequence[tuple[Callable[[Outcome], None], Outcome]]) -> None:
    for answer, outcome in answers:
        answer(outcome)
