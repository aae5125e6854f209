"""One thread reads for every open stream of the process: each job's news once, whoever watches, when there is some."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from service.core.errors import ServiceError, TooManyRequestsError

QUEUE = 256
"""Messages that wait for one client; a slower one is let go, and comes back to what it missed."""
ROUND_SECONDS = 0.05
"""Between two rounds of reading: what comes within one is read together."""
POLL_SECONDS = 1.0
"""How often every watched place is looked at without a hint: for what other processes wrote."""
ALL_JOBS_SECONDS = 0.5
"""Between two readings for all jobs, each of which writes to the feed."""
IDLE_SECONDS = 5.0

Place = tuple[int, int]
"""Anything that is ordered the way the stream is; a job's sequence is (sequence, 0)."""


class Item(NamedTuple):
    """One encoded message, with what subscribers choose by."""

    place: Place
    text: str
    rank: str | None = None
    """Of a log line's log."""


class News(NamedTuple):
    """What a source has after a place."""

    items: list[Item]
    reached: Place
    over: bool
    more: bool = False
    """There is more to read at once."""


Topic = int | None
"""A job's number, or all jobs."""


class Source(Protocol):
    """Where the messages of a topic come from. Called in threads."""

    topic: Topic

    def read(self, place: Place, logs: bool, /) -> News:
        """What comes after a place, with or without logs."""
        ...

    def head(self) -> Place:
        """The place reached by now."""
        ...


class Subscriber:
    """One client's queue. Lives on its event loop; `closed` is set when nothing more comes."""

    def __init__(self, wants: Callable[[Item], bool], *, logs: bool):
        self.loop = asyncio.get_running_loop()
        self.logs = logs
        self.items: deque[Item] = deque()
        self.closed = False
        self._wants = wants
        self._ready = asyncio.Event()

    def push(self, items: Iterable[Item], over: bool) -> None:
        """On the loop's thread."""
        if self.closed:
            return
        if len(self.items) > QUEUE:
            # Not after this push: what is read at once may be more, and is no sign of slowness.
            self.items.clear()
            self.closed = True
        else:
            self.items.extend(item for item in items if self._wants(item))
        self.closed = self.closed or over
        self._ready.set()

    async def wait(self, seconds: float) -> bool:
        """Until there is something, or the end; False after that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            return False
        self._ready.clear()
        return True


@dataclass
class _Watched:
    source: Source
    subscribers: set[Subscriber]
    reached: Place


class Hub:
    """The open streams of a process, by topic."""

    def __init__(self, *, limit: int, poll: bool = True):
        """`limit`: streams at once. `poll`: other processes write to the same database."""
        self._limit = limit
        self._poll_seconds = POLL_SECONDS if poll else IDLE_SECONDS
        self._topics: dict[Topic, _Watched] = {}
        self._dirty: set[Topic] = set()
        self._count = 0
        self._all_read_at = 0.0
        self._changed = threading.Condition()
        self._running = False
        self._closing = False

    def touched(self, jobs: Iterable[int]) -> None:
        """These jobs have news."""
        with self._changed:
            self._dirty.update(job for job in jobs if job in self._topics)
            if None in self._topics:
                self._dirty.add(None)
            if self._dirty:
                self._changed.notify()

    def subscribe(self, source: Source, subscriber: Subscriber) -> Place:
        """Called in a thread. What comes after the returned place is pushed; what was before is the caller's to read.

        Raises:
            TooManyRequestsError: as many streams are open as may be.
        """
        head = source.head()
        with self._changed:
            if self._closing or self._count >= self._limit:
                raise TooManyRequestsError("too many streams are open; come again later", code="too_many_streams")
            self._count += 1
            entry = self._topics.setdefault(source.topic, _Watched(source, set(), head))
            entry.subscribers.add(subscriber)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="streams", daemon=True).start()
            return entry.reached

    def unsubscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        with self._changed:
            entry = self._topics.get(topic)
            if entry is None or subscriber not in entry.subscribers:
                return
            entry.subscribers.discard(subscriber)
            self._count -= 1
            if not entry.subscribers:
                del self._topics[topic]

    def close(self) -> None:
        """End every stream now; clients come back to the next process."""
        with self._changed:
            self._closing = True
            everyone = [subscriber for topic in self._topics.values() for subscriber in topic.subscribers]
        _deliver([(subscriber, [], True) for subscriber in everyone])

    @property
    def open(self) -> int:
        return self._count

    def _run(self) -> None:
        while (topics := self._next()) is not None:
            for topic, entry in topics:
                try:
                    self._read(topic, entry)
                except ServiceError:
                    pass  # the database does not answer; the next look finds what was missed
                except Exception as error:
                    structlog.get_logger("streams").error("a stream was not read", topic=topic, exc_info=error)
            time.sleep(ROUND_SECONDS)

    def _next(self) -> list[tuple[Topic, _Watched]] | None:
        """What to read now; None when nobody has watched anything for a while."""
        with self._changed:
            hinted = self._changed.wait_for(lambda: self._dirty, self._poll_seconds)
            if not self._topics and not hinted:
                self._running = False
                return None
            wanted = self._dirty if hinted else set(self._topics)
            self._dirty = set()
            if None in wanted and time.monotonic() - self._all_read_at < ALL_JOBS_SECONDS:
                wanted.discard(None)
                self._dirty.add(None)
            elif None in wanted:
                self._all_read_at = time.monotonic()
            return [(topic, self._topics[topic]) for topic in wanted if topic in self._topics]

    def _read(self, topic: Topic, entry: _Watched) -> None:
        with self._changed:
            logs = any(subscriber.logs for subscriber in entry.subscribers)
        news = entry.source.read(entry.reached, logs)
        with self._changed:
            # Who joins from here on reads up to this place by itself.
            entry.reached = news.reached
            listeners = list(entry.subscribers)
            if news.more:
                self._dirty.add(topic)
        if news.items or news.over:
            _deliver([(subscriber, news.items, news.over) for subscriber in listeners])


def _deliver(pushes: list[tuple[Subscriber, list[Item], bool]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Subscriber, list[Item], bool]]] = {}
    for push in pushes:
        by_loop.setdefault(push[0].loop, []).append(push)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # a closed loop: its clients are gone
            loop.call_soon_threadsafe(_push_all, some)


def _push_all(pushes: list[tuple[Subscriber, list[Item], bool]]) -> None:
    for subscriber, items, over in pushes:
        subscriber.push(items, over)
