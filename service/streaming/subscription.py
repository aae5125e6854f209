"""One client's stream: first what it missed, read for it alone, then what the hub reads for all."""

from collections.abc import AsyncGenerator
from functools import partial

from starlette.concurrency import run_in_threadpool

from service.streaming.broadcaster import Hub, Item, News, Place, Source, Subscriber

HEARTBEAT_SECONDS = 15.0
RETRY = "retry: 1000\n\n"


class Following:
    """Made when the request comes, so that what is wrong is told before the stream begins."""

    def __init__(self, hub: Hub, source: Source, *, logs: bool, rank: str | None = None):
        """`rank`: of the logs, only this one's."""
        self._hub = hub
        self._source = source
        self._rank = rank
        self._logs = logs
        self._subscriber = Subscriber(self._wants, logs=logs)
        self._first = News([], (0, 0), over=False)
        self._live_from: Place = (0, 0)

    async def start(self, after: Place | None) -> bool:
        """Read the first of what was missed and join the others; False when nothing will ever come.

        Args:
            after: None: from now on.

        Raises:
            NotFoundError: there is no such job.
            TooManyRequestsError: too many streams are open.
        """
        if after is None:
            after = await run_in_threadpool(self._source.head)
        self._first = await run_in_threadpool(self._source.read, after, self._logs)
        if self._first.over:
            return bool(self._first.items)
        join = partial(self._hub.subscribe, self._source, self._subscriber)
        self._live_from = await run_in_threadpool(join)
        return True

    async def events(self) -> AsyncGenerator[str]:
        """Server-sent events until nothing more can come, the service stops, or the client is too slow."""
        try:
            yield RETRY
            piece = self._first
            while True:
                if text := self._text(piece.items):
                    yield text
                if piece.over:
                    return
                if piece.reached >= self._live_from:
                    break
                piece = await run_in_threadpool(self._source.read, piece.reached, self._logs)
            reached = piece.reached
            while True:
                told = await self._subscriber.wait(HEARTBEAT_SECONDS)
                items = list(self._subscriber.items)
                self._subscriber.items.clear()
                if text := "".join(item.text for item in items if item.place > reached):
                    yield text
                if self._subscriber.closed:
                    return
                if not told:
                    yield ": still here\n\n"
        finally:
            self._hub.unsubscribe(self._source.topic, self._subscriber)

    def _text(self, items: list[Item]) -> str:
        return "".join(item.text for item in items if self._wants(item))

    def _wants(self, item: Item) -> bool:
        return item.rank is None or (self._logs and self._rank in (None, item.rank))
