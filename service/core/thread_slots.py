"""Shares of threads and processes: how many an owner, and all owners together, use at once, and for how long.

Everything that runs beside the event loop for a user or a worker takes its place here, so that it has an owner and a
deadline. `tests/unit/service/test_owned_threads.py` forbids other executors.
"""

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

from service.core.errors import (
    ClientGoneError,
    InvalidRequestError,
    ServiceError,
    TooManyRequestsError,
    UnavailableError,
)

P = ParamSpec("P")
T = TypeVar("T")

SECONDS = 30.0
"""How long a request may use its slot, and how long it waits for a slot."""
_INTERRUPT_SECONDS = 0.5
"""Interval at which a request that is over is interrupted again, until it ends."""


class Deadline:
    """When the work in a slot must end. Long work checks it: a thread cannot be stopped from outside."""

    def __init__(self, seconds: float, *, is_repeated: bool = False) -> None:
        """
        Args:
            is_repeated: The caller sends a request again that took too long, as workers do.
        """
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds
        self._is_repeated = is_repeated
        self._lock = threading.Lock()
        self._interrupt: Callable[[], object] | None = None
        self.client_gone = False

    @property
    def remaining(self) -> float:
        """Seconds until the end."""
        return max(0.0, self._ends_at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the work must end."""
        return self.client_gone or time.monotonic() >= self._ends_at

    @property
    def error(self) -> ServiceError:
        """Why the work must end."""
        if self.client_gone:
            return ClientGoneError("the client disconnected before its answer was ready")
        message = f"this request takes more than {self._seconds:g} s"
        if self._is_repeated:
            return UnavailableError(f"{message}; send it again", code="database")
        remedy = "ask for less at once: fewer conditions with ~, fewer columns, a smaller page or fewer jobs"
        return InvalidRequestError(f"{message}, and was ended; {remedy}", code="too_expensive")

    def check(self) -> None:
        """Raise the error if the work must end."""
        if self.is_over:
            raise self.error

    @contextmanager
    def interrupted_by(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Have `interrupt` called, in another thread, if the work must end within the block."""
        with self._lock:
            self._interrupt = interrupt
        try:
            yield
        finally:
            # An interrupt in progress must not reach the code after the block.
            with self._lock:
                self._interrupt = None

    def interrupt(self) -> None:
        """End the running work, if it can be ended."""
        with self._lock, suppress(Exception):
            if self._interrupt is not None:
                self._interrupt()


_DEADLINE: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def current_deadline() -> Deadline | None:
    """Return the deadline of the slot that this code runs in; None outside of slots."""
    return _DEADLINE.get()


class SlotsTakenError(TooManyRequestsError):
    """No slot became free in time."""

    def __init__(self, *, is_own: bool):
        """
        Args:
            is_own: The owner has no further slot; otherwise other owners use all of them.
        """
        whose = "other requests of yours are" if is_own else "requests of others are"
        super().__init__(f"{whose} in progress, and this one has waited too long; send it again later")
        self.is_own = is_own


class ThreadSlots:
    """Lets each owner use a few slots, and all owners together some more. Further requests wait without a thread.

    Owners take turns: among the waiting owners, the owner who was served longest ago is next, however many requests
    another owner has. The pool has 40 threads. Users and workers have slots of their own, and the rest is left for
    authentication, the audit log and probes, so that no requests of users delay workers or other users for long.
    """

    def __init__(
        self,
        *,
        each: int,
        total: int,
        seconds: float = SECONDS,
        wait_seconds: float | None = None,
        is_repeated: bool = False,
    ):
        """
        Args:
            each: Number of slots per owner.
            total: Slots of all owners.
            seconds: How long the work in a slot may take.
            wait_seconds: How long to wait for a slot; default: as long.
            is_repeated: The owners send a request again that took too long.
        """
        self._each = each
        self._total = total
        self._seconds = seconds
        self._wait_seconds = seconds if wait_seconds is None else wait_seconds
        self._is_repeated = is_repeated
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Future[None]]] = OrderedDict()
        """The requests of each owner that wait, the owners in the order of their turns."""

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[Deadline]:
        """Hold a slot, after earlier requests of the owner. A task holds at most one slot.

        Raises:
            SlotsTakenError: None became free in time.
        """
        granted = self._request(owner)
        if not granted.done():
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await asyncio.wrap_future(granted)
            except BaseException as error:
                self._withdraw(owner, granted)
                if isinstance(error, TimeoutError):
                    raise self._taken(owner) from None
                raise
        with self._working(owner) as deadline:
            yield deadline

    @contextmanager
    def hold(self, owner: str) -> Iterator[Deadline]:
        """Hold a slot, and wait for it in this thread. Raises SlotsTakenError: none became free in time."""
        self._acquire(owner)
        with self._working(owner) as deadline:
            yield deadline

    async def run(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread of the pool, in a slot of the owner, which is held until the function ends."""
        async with self.slot(owner):
            running = asyncio.ensure_future(run_in_threadpool(function, *args, **kwargs))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait((running,))
                raise

    def call(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread of its own, and wait for it no longer than its deadline.

        The thread holds its slot until the function ends, however long that takes, so that a hanging function uses up
        the share of its owner alone. It is a daemon: the threads of an executor would delay the end of the process.

        Raises:
            SlotsTakenError: No slot became free in time.
            TimeoutError: The function has not ended in time.
        """
        return self.begin(owner, function, *args, **kwargs).result(self._seconds)

    def begin(self, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run a function as `call` does, without waiting for it.

        Raises:
            SlotsTakenError: No slot became free in time.
        """
        self._acquire(owner)
        result: Future[T] = Future()

        def run() -> None:
            try:
                with self._working(owner):
                    value = function(*args, **kwargs)
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(value)

        try:
            threading.Thread(target=run, name=f"slot of {owner}", daemon=True).start()
        except RuntimeError:
            self._release(owner)
            raise
        return result

    @contextmanager
    def _working(self, owner: str) -> Iterator[Deadline]:
        """Set the deadline for a block, and release the slot after it."""
        deadline = Deadline(self._seconds, is_repeated=self._is_repeated)
        token = _DEADLINE.set(deadline)
        try:
            yield deadline
        finally:
            self._release(owner)
            _DEADLINE.reset(token)

    def _acquire(self, owner: str) -> None:
        granted = self._request(owner)
        try:
            granted.result(self._wait_seconds)
        except TimeoutError:
            self._withdraw(owner, granted)
            raise self._taken(owner) from None

    def _request(self, owner: str) -> "Future[None]":
        """Return a future that is done as soon as the slot is granted."""
        granted: Future[None] = Future()
        with self._lock:
            self._waiting.setdefault(owner, deque()).append(granted)
            self._grant()
        return granted

    def _grant(self) -> None:
        """Give free slots to the owners whose turn it is. The lock must be held."""
        for owner in list(self._waiting):
            waiting = self._waiting[owner]
            while waiting and self._used[owner] < self._each and self._used.total() < self._total:
                granted = waiting.popleft()
                if granted.set_running_or_notify_cancel():
                    self._used[owner] += 1
                    self._waiting.move_to_end(owner)
                    granted.set_result(None)
                    break
            if not waiting:
                del self._waiting[owner]

    def _release(self, owner: str) -> None:
        with self._lock:
            self._used -= Counter((owner,))
            self._grant()

    def _withdraw(self, owner: str, granted: "Future[None]") -> None:
        """Wait no more; a slot that was granted meanwhile is released."""
        if not granted.cancel():
            self._release(owner)
            return
        with self._lock:
            waiting = self._waiting.get(owner)
            if waiting is not None and granted in waiting:
                waiting.remove(granted)
                if not waiting:
                    del self._waiting[owner]

    def _taken(self, owner: str) -> SlotsTakenError:
        with self._lock:
            return SlotsTakenError(is_own=self._used[owner] >= self._each)


_CALLER: ContextVar[tuple[ThreadSlots, str] | None] = ContextVar("thread_slots", default=None)


def forget_caller() -> None:
    """Begin a request without slots and deadline.

    On a connection with several requests, it may begin in the context of an earlier request, whose deadline may be
    over.
    """
    _CALLER.set(None)
    _DEADLINE.set(None)


def set_thread_slots(slots: ThreadSlots, owner: str) -> None:
    """Set whose slots the request of this task uses."""
    _CALLER.set((slots, owner))


def change_thread_slots(slots: ThreadSlots) -> None:
    """Have the rest of this task use other slots of its caller."""
    caller = _CALLER.get()
    if caller is not None:
        set_thread_slots(slots, caller[1])


@asynccontextmanager
async def caller_thread_slot() -> AsyncIterator[Deadline | None]:
    """Hold a slot of the request's caller; a request without a caller, such as a probe, needs no slot."""
    caller = _CALLER.get()
    if caller is None:
        yield None
        return
    async with caller[0].slot(caller[1]) as deadline:
        yield deadline


async def run_in_thread_slot(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, in a slot of the request's caller."""
    async with caller_thread_slot():
        return await run_in_threadpool(function, *args, **kwargs)


async def iterate_in_thread_slot(iterator: Iterator[T]) -> AsyncGenerator[T]:
    """Yield the items of an iterator, each of which is made in a thread, in a slot of the request's caller."""
    end = object()
    while (item := await run_in_thread_slot(partial(next, iterator, end))) is not end:
        yield item


@asynccontextmanager
async def ended_with_client(receive: Receive, deadline: Deadline) -> AsyncIterator[None]:
    """End the work of a block once the client disconnects, or its time is over. The body must have been received."""
    watch = asyncio.create_task(_watch(receive, deadline))
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait((watch,))


async def _watch(receive: Receive, deadline: Deadline) -> None:
    try:
        async with asyncio.timeout(deadline.remaining):
            # The answer to a refused body is the refusal, so nobody reads the answer of the work either.
            with suppress(ServiceError):
                while (await receive())["type"] != "http.disconnect":
                    pass
        deadline.client_gone = True
    except TimeoutError:
        pass
    while True:
        await run_in_threadpool(deadline.interrupt)
        await asyncio.sleep(_INTERRUPT_SECONDS)
