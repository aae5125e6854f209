"""Shares of the thread pool: how many threads the requests of one caller, and of all users or workers, use at once."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from starlette.concurrency import run_in_threadpool

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class _LoopSlots:
    """The slots of one event loop, to which limiters belong. The service has one loop, its tests may have several."""

    total: CapacityLimiter
    owners: dict[str, tuple[CapacityLimiter, list[None]]] = field(default_factory=dict)
    """The limiter of each owner, with one entry for each request that holds a slot or waits for one."""


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
        self._max_total = total
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSlots] = WeakKeyDictionary()

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Hold a thread's slot, after earlier requests of the owner. One task holds at most one slot."""
        loop = asyncio.get_running_loop()
        slots = self._loops.get(loop)
        if slots is None:
            slots = self._loops[loop] = _LoopSlots(CapacityLimiter(self._max_total))
        limiter, requests = slots.owners.setdefault(owner, (CapacityLimiter(self._each), []))
        requests.append(None)
        try:
            async with limiter, slots.total:
                yield
        finally:
            requests.pop()
            if not requests:
                slots.owners.pop(owner, None)

    async def run(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread, in a slot of the owner."""
        async with self.slot(owner):
            return await run_in_threadpool(function, *args, **kwargs)


_CALLER: ContextVar[tuple[ThreadSlots, str] | None] = ContextVar("thread_slots", default=None)


def set_thread_slots(slots: ThreadSlots, owner: str) -> None:
    """Set whose slots the request of this task uses."""
    _CALLER.set((slots, owner))


def change_thread_slots(slots: ThreadSlots) -> None:
    """Have the rest of this task use other slots of its caller."""
    caller = _CALLER.get()
    if caller is not None:
        set_thread_slots(slots, caller[1])


@asynccontextmanager
async def caller_thread_slot() -> AsyncIterator[None]:
    """Hold a slot of the request's caller; without one, such as for a probe, none is needed."""
    caller = _CALLER.get()
    if caller is None:
        yield
        return
    async with caller[0].slot(caller[1]):
        yield


async def run_in_thread_slot(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, in a slot of the request's caller."""
    async with caller_thread_slot():
        return await run_in_threadpool(function, *args, **kwargs)


async def iterate_in_thread_slot(iterator: Iterator[T]) -> AsyncGenerator[T]:
    """Yield the items of an iterator, each of which is made in a thread, in a slot of the request's caller."""
    end = object()
    while (item := await run_in_thread_slot(partial(next, iterator, end))) is not end:
        yield item
