"""One thread reads for all open streams of the process: each topic once, whenever it has news."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from service.core.errors import ServiceError, TooManyRequestsError

QUEUE = 256
"""Maximum number of messages that wait for a client. A slower client is disconnected; it can resume from its last
event."""
QUEUE_CHARS = 4 * 1024 * 1024
"""The same for the characters of these messages."""
ROUND_SECONDS = 0.05
"""Pause between two rounds of reads: messages that arrive meanwhile are read together."""
POLL_SECONDS = 1.0
"""Interval at which every topic is read without a notification, for changes by other processes."""
ALL_JOBS_SECONDS = 0.5
"""Interval between two reads for all jobs, each of which writes to the feed."""


class StreamOffset(NamedTuple):
    """A position in a stream. In the global feed `within` is the position inside of an entry; elsewhere it is 0."""

    position: int
    within: int = 0

    def __str__(self) -> str:
        return f"{self.position}-{self.within}"


class Item(NamedTuple):
    """One encoded message with the properties that subscribers filter by."""

    offset: StreamOffset
    text: str
    rank: str | None = None
    """The rank of a log message."""
    owner: str | None = None
    """The user whose job it is about; None: it is about no job."""
    project: str | None = None
    """The project of that job."""
    readers: frozenset[str] | None = None
    """Who may read it besides administrators, if the project is private; None: everybody."""


class Update(NamedTuple):
    """The messages after an offset."""

    items: list[Item]
    offset: StreamOffset
    """The offset up to which the source was read."""
    finished: bool
    """Nothing can follow."""
    more: bool = False
    """There is more to read immediately."""


Topic = int | None
"""The primary key of a job, or None for all jobs."""


class Source(Protocol):
    """Reads the messages of a topic. Called in threads."""

    topic: Topic

    def read(self, offset: StreamOffset, logs: bool, /) -> Update:
        """Return the messages after an offset, with or without logs."""

    def newest_offset(self) -> StreamOffset:
        """Return the offset after the newest message."""


class Subscriber:
    """The queue of a client. It lives on the client's event loop; `closed` is set when nothing follows."""

    def __init__(self, accepts: Callable[[Item], bool], *, logs: bool, owner: str = ""):
        """
        Args:
            owner: The user in whose share of the streams this stream counts.
        """
        self.owner = owner
        self.loop = asyncio.get_running_loop()
        self.logs = logs
        self.items: deque[Item] = deque()
        self.closed = False
        self._accepts = accepts
        self._ready = asyncio.Event()

    def push(self, items: Iterable[Item], finished: bool) -> None:
        """Add messages. Must be called on the loop's thread."""
        if self.closed:
            return
        if len(self.items) > QUEUE or sum(len(item.text) for item in self.items) > QUEUE_CHARS:
            # Checked before this push: a single read may exceed the limit without the client being slow.
            self.items.clear()
            self.closed = True
        else:
            self.items.extend(item for item in items if self._accepts(item))
        self.closed = self.closed or finished
        self._ready.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for messages or the end; return False after the given time."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            return False
        self._ready.clear()
        return True


@dataclass
class _TopicState:
    source: Source
    subscribers: set[Subscriber]
    offset: StreamOffset


class Broadcaster:
    """The open streams of a process, by topic."""

    def __init__(self, *, limit: int, owner_limit: int | None = None):
        """
        Args:
            limit: Maximum number of open streams.
            owner_limit: Maximum number of open streams per user.
        """
        self._limit = limit
        self._owner_limit = limit if owner_limit is None else owner_limit
        self._topics: dict[Topic, _TopicState] = {}
        self._changed_topics: set[Topic] = set()
        self._count = 0
        self._counts: Counter[str] = Counter()
        """Open streams by owner."""
        self._all_read_at = 0.0
        self._condition = threading.Condition()
        self._running = False
        self._closing = False

    def on_commit(self, jobs: Iterable[int]) -> None:
        """Read the topics of these jobs soon."""
        with self._condition:
            self._changed_topics.update(job for job in jobs if job in self._topics)
            if None in self._topics:
                self._changed_topics.add(None)
            if self._changed_topics:
                self._condition.notify()

    def subscribe(self, source: Source, subscriber: Subscriber) -> StreamOffset:
        """Push the messages after the returned offset; the caller reads the messages before it. Must be called in a
        thread.

        Raises:
            TooManyRequestsError: The maximum number of streams is open, in total or for this user.
        """
        newest = source.newest_offset()
        with self._condition:
            if self._closing or self._count >= self._limit:
                raise TooManyRequestsError("too many streams are open; try again later", code="too_many_streams")
            if self._counts[subscriber.owner] >= self._owner_limit:
                message = f"you have {self._owner_limit} open streams; close one of them"
                raise TooManyRequestsError(message, code="too_many_streams")
            self._count += 1
            self._counts[subscriber.owner] += 1
            state = self._topics.setdefault(source.topic, _TopicState(source, set(), newest))
            state.subscribers.add(subscriber)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="streams", daemon=True).start()
            return state.offset

    def unsubscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        with self._condition:
            state = self._topics.get(topic)
            if state is None or subscriber not in state.subscribers:
                return
            state.subscribers.discard(subscriber)
            self._count -= 1
            self._counts -= Counter((subscriber.owner,))
            if not state.subscribers:
                del self._topics[topic]

    def close(self) -> None:
        """End all streams; clients reconnect to the next process."""
        with self._condition:
            self._closing = True
            subscribers = [subscriber for state in self._topics.values() for subscriber in state.subscribers]
        _deliver([(subscriber, [], True) for subscriber in subscribers])

    @property
    def open_streams(self) -> int:
        return self._count

    def _run(self) -> None:
        while (topics := self._next_topics()) is not None:
            for topic, state in topics:
                try:
                    self._read(topic, state)
                except ServiceError:
                    pass  # the database did not answer; the next read catches up
                except Exception as error:
                    structlog.get_logger("streams").error("failed to read a stream", topic=topic, exc_info=error)
            time.sleep(ROUND_SECONDS)

    def _next_topics(self) -> list[tuple[Topic, _TopicState]] | None:
        """Return the topics to read now; None ends the thread after a period without subscribers."""
        with self._condition:
            notified = self._condition.wait_for(lambda: self._changed_topics, POLL_SECONDS)
            if not self._topics and not notified:
                self._running = False
                return None
            due = self._changed_topics if notified else set(self._topics)
            self._changed_topics = set()
            if None in due and time.monotonic() - self._all_read_at < ALL_JOBS_SECONDS:
                due.discard(None)
                self._changed_topics.add(None)
            elif None in due:
                self._all_read_at = time.monotonic()
            return [(topic, self._topics[topic]) for topic in due if topic in self._topics]

    def _read(self, topic: Topic, state: _TopicState) -> None:
        with self._condition:
            logs = any(subscriber.logs for subscriber in state.subscribers)
        update = state.source.read(state.offset, logs)
        with self._condition:
            # A client that subscribes from here on reads up to this offset itself.
            state.offset = update.offset
            subscribers = list(state.subscribers)
            if update.more:
                self._changed_topics.add(topic)
        if update.items or update.finished:
            _deliver([(subscriber, update.items, update.finished) for subscriber in subscribers])


def _deliver(pushes: list[tuple[Subscriber, list[Item], bool]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Subscriber, list[Item], bool]]] = {}
    for push in pushes:
        by_loop.setdefault(push[0].loop, []).append(push)
    for loop, group in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: its clients have disconnected
            loop.call_soon_threadsafe(_push_all, group)


def _push_all(pushes: list[tuple[Subscriber, list[Item], bool]]) -> None:
    for subscriber, items, finished in pushes:
        subscriber.push(items, finished)
