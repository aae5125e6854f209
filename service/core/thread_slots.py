"""Shares of the thread pool: how many threads the requests of one caller, and of all users or workers, use at once."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter
from starlette.concurrency import run_in_threadpool

P = ParamSpec("P")
T = TypeVar("T")


class ThreadSlots:
    """Lets each owner use a few threads, and all owners together some more. Further requests wait without a thread.

    The pool has 40 threads. Users and workers have slots of their own, and the rest is left for authentication,
    the audit log and probes, so that no requests of users delay workers or other users for long.
    """

    def __init__(self, *, each: int, total: int):
        """
        Args:
            each: Threads of one owner.
            total: Threads of all owners.
        """
        self._each = each
        self._total = CapacityLimiter(total)
        self._owners: dict[str, tuple[CapacityLimiter, list[None]]] = {}
        """The limiter of each owner, with one entry for each request that holds a slot or waits for one."""

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Hold a thread's slot, after earlier requests of the owner. One task holds at most one slot."""
        limiter, requests = self._owners.setdefault(owner, (CapacityLimiter(self._each), []))
        requests.append(None)
        try:
            async with limiter, self._total:
                yield
        finally:
            requests.pop()
            if not requests:
                self._owners.pop(owner, None)

    async def run(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread, in a slot of the owner."""
        async with self.slot(owner):
            return await run_in_threadpool(function, *args, **kwargs)


_CALLER: ContextVar[tuple[ThreadSlots, str] | None] = ContextVar("thread_slots", default=None)


def set_slots(slots: ThreadSlots, owner: str) -> None:
    """Set whose slots the request of this task uses."""
    _CALLER.set((slots, owner))


@asynccontextmanager
async def caller_slot() -> AsyncIterator[None]:
    """Hold a slot of the request's caller; without one, such as for a probe, none is needed."""
    caller = _CALLER.get()
    if caller is None:
        yield
        return
    async with caller[0].slot(caller[1]):
        yield


async def run_in_slot(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, in a slot of the request's caller."""
    async with caller_slot():
        return await run_in_threadpool(function, *args, **kwargs)


async def iterate_in_slot(iterator: Iterator[T]) -> AsyncGenerator[T]:
    """Yield the items of an iterator, each of which is made in a thread, in a slot of the request's caller."""
    end = object()
    while (item := await run_in_slot(partial(next, iterator, end))) is not end:
        yield item
