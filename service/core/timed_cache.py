"""A value that is computed at most once in a period, for routes that anybody can call."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedCache(Generic[T]):
    """Holds a value for a period. Concurrent callers wait for the same computation."""

    def __init__(self, period: timedelta):
        self._period = period
        self._entry: tuple[datetime, T] | None = None
        self._lock = threading.Lock()

    def get(self, now: datetime, compute: Callable[[], T]) -> T:
        """Return the value, computed anew if it is older than the period."""
        with self._lock:
            if self._entry is None or not timedelta(0) <= now - self._entry[0] < self._period:
                self._entry = (now, compute())
            return self._entry[1]
