"""A lock that is acquired in the order of the requests.

Python's locks, and therefore the connection pool, let a newly arrived thread overtake waiting threads. With many
writers, a thread was overtaken for 0.1 s although the work before it took a few milliseconds.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairLockTimeoutError(Exception):
    """The lock was not acquired before the timeout."""


class FairLock:
    """A first-in-first-out mutex."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locked = False
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def hold(self, timeout: float) -> Iterator[None]:
        """Hold the lock during the block. Not reentrant.

        Raises:
            FairLockTimeoutError: the lock was not acquired within `timeout` seconds.
        """
        self._acquire(timeout)
        try:
            yield
        finally:
            self._release()

    def _acquire(self, timeout: float) -> None:
        with self._guard:
            if not self._locked:
                self._locked = True
                return
            waiter = threading.Lock()
            waiter.acquire()
            self._waiting.append(waiter)
        if waiter.acquire(timeout=timeout):
            return
        with self._guard:
            # Otherwise it was released to this thread after the timeout and before this line.
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                raise FairLockTimeoutError(f"the lock was not acquired within {timeout:g} seconds")

    def _release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._locked = False
