"""A lock that is given in the order in which it was asked for.

Python's own locks, and so the connection pool, let a thread that comes by at the right moment overtake those that wait.
With many writers one of them was overtaken for a tenth of a second, where the work before it took a few thousandths.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class FairLockTimeoutError(Exception):
    """The turn did not come in time."""


class FairLock:
    """One at a time, first come, first served."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """Not for a thread that has the turn already.

        Raises:
            TurnTimeoutError: it did not come within that time.
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
            called = threading.Lock()
            called.acquire()
            self._waiting.append(called)
        if called.acquire(timeout=seconds):
            return
        with self._guard:
            # Else it was called between the end of the time and here, and the turn is ours.
            if called in self._waiting:
                self._waiting.remove(called)
                raise FairLockTimeoutError(f"no turn within {seconds:g} seconds")

    def _pass_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
