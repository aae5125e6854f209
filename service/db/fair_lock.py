"""A lock that is granted in the order of the requests.

Python's locks, and therefore the connection pool, let a newly arrived thread overtake waiting ones. With many writers,
one was overtaken for 0.1 s although the work before it took a few milliseconds.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairLockTimeoutError(Exception):
    """The lock was not granted in time."""


class FairLock:
    """A mutex, first come, first served."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """Hold the lock; not reentrant.

        Raises:
            FairLockTimeoutError: the lock was not granted within that time.
        """
        self._take(seconds)
        try:
            yield
        finally:
            self._pass_on()

    def _take(self, seconds: float) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            granted = threading.Lock()
            granted.acquire()
            self._waiting.append(granted)
        if granted.acquire(timeout=seconds):
            return
        with self._guard:
            # Otherwise it was granted after the timeout and before this line.
            if granted in self._waiting:
                self._waiting.remove(granted)
                raise FairLockTimeoutError(f"no turn within {seconds:g} seconds")

    def _pass_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
