"""Shares of the thread pool: the number of expensive requests that one user has in progress."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")

_MIN_WAIT_SECONDS = 0.005
_MAX_WAIT_SECONDS = 0.1


class UserSlots:
    """Lets each user run a few expensive requests at once; further ones wait without a thread."""

    def __init__(self, limit: int = 4):
        """
        Args:
            limit: Requests of one user that run at once. The pool has 40 threads.
        """
        self._limit = limit
        self._running: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """Run a function in a thread, after earlier requests of the user."""
        async with self._slot(user):
            return await run_in_threadpool(function)

    @asynccontextmanager
    async def _slot(self, user: str) -> AsyncIterator[None]:
        seconds = _MIN_WAIT_SECONDS
        while not self._acquire(user):
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _MAX_WAIT_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._running -= Counter((user,))

    def _acquire(self, user: str) -> bool:
        with self._lock:
            if self._running[user] >= self._limit:
                return False
            self._running[user] += 1
            return True
