"""The stream of a client: first the messages that it missed, then the messages that the broadcaster reads for all."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from functools import partial

from service.core.thread_slots import run_in_thread_slot
from service.db.visibility import present_reader
from service.streaming.broadcaster import Broadcaster, Item, Source, StreamOffset, Subscriber, Update

KEEP_ALIVE_SECONDS = 15.0
RETRY = "retry: 1000\n\n"
KEEP_ALIVE = ": keep-alive\n\n"
_MAX_WRITE = 64 * 1024
"""Characters of messages that are sent together."""


class Subscription:
    """Created when the request arrives, so that errors are raised before the response begins."""

    def __init__(
        self, broadcaster: Broadcaster, source: Source, *, logs: bool, rank: str | None = None, owner: str = ""
    ):
        """
        Args:
            owner: The user in whose share of the streams this stream counts.
            rank: Restricts log messages to this rank.
        """
        self._broadcaster = broadcaster
        self._source = source
        self._rank = rank
        self._logs = logs
        self._reader = present_reader()
        self._subscriber = Subscriber(self._accepts, logs=logs, owner=owner)
        self._missed = Update([], StreamOffset(0), finished=False)
        self._live_from = StreamOffset(0)

    async def start(self, after: StreamOffset | None) -> bool:
        """Read the first missed messages and subscribe; return False when nothing will ever follow.

        Args:
            after: None starts at the newest message.

        Raises:
            NotFoundError: There is no such job.
            TooManyRequestsError: Too many streams are open.
        """
        if after is None:
            after = await run_in_thread_slot(self._source.newest_offset)
        self._missed = await run_in_thread_slot(self._source.read, after, self._logs)
        if self._missed.finished:
            return bool(self._missed.items)
        subscribe = partial(self._broadcaster.subscribe, self._source, self._subscriber)
        self._live_from = await run_in_thread_slot(subscribe)
        return True

    async def events(self) -> AsyncGenerator[str]:
        """Yield server-sent events until nothing can follow, the service stops, or the client is too slow."""
        try:
            yield RETRY
            update = self._missed
            while True:
                for text in _join(item for item in update.items if self._accepts(item)):
                    yield text
                if update.finished:
                    return
                if update.offset >= self._live_from:
                    break
                update = await run_in_thread_slot(self._source.read, update.offset, self._logs)
            while True:
                ready = await self._subscriber.wait(KEEP_ALIVE_SECONDS)
                items = list(self._subscriber.items)
                self._subscriber.items.clear()
                for text in _join(item for item in items if item.offset > update.offset):
                    yield text
                if self._subscriber.closed:
                    return
                if not ready:
                    yield KEEP_ALIVE
        finally:
            self._broadcaster.unsubscribe(self._source.topic, self._subscriber)

    def _accepts(self, item: Item) -> bool:
        # Each item states who may read it when it was read: a member who was removed gets no further messages.
        is_hidden = (
            self._reader is not None
            and item.owner is not None
            and not self._reader.sees(item.owner, item.project, item.readers)
        )
        return not is_hidden and (item.rank is None or (self._logs and self._rank in (None, item.rank)))


def _join(items: Iterable[Item]) -> Iterator[str]:
    """Yield the texts of the messages, together up to a size: each write has a cost, and a large write takes memory."""
    texts: list[str] = []
    size = 0
    for item in items:
        texts.append(item.text)
        size += len(item.text)
        if size >= _MAX_WRITE:
            yield "".join(texts)
            texts, size = [], 0
    if texts:
        yield "".join(texts)
