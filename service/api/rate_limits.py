"""Rate limits by token bucket: each key has a bucket of requests that refills at a constant rate."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from math import ceil

_MAX_KEYS = 10_000


@dataclass(frozen=True)
class Rate:
    """A sustained rate in requests per second, and the largest burst in requests."""

    per_second: float
    burst: int


@dataclass(frozen=True)
class Allowance:
    """The result of a request: whether it is allowed, and the state of its bucket."""

    allowed: bool
    limit: int
    remaining: int
    reset_seconds: int
    """Seconds until the bucket is full."""
    retry_seconds: int = 0
    """Seconds until the next request is allowed; 0 if this request is."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"ratelimit-limit", b"%d" % self.limit),
            (b"ratelimit-remaining", b"%d" % self.remaining),
            (b"ratelimit-reset", b"%d" % self.reset_seconds),
        ]


class RateLimiter:
    """One bucket for each key. The least recently used keys are evicted, which refills their buckets."""

    def __init__(self, rate: Rate):
        self._rate = rate
        self._levels: OrderedDict[str, tuple[float, datetime]] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self, key: str, now: datetime) -> Allowance:
        """Take a request from the bucket of a key, if it has any left."""
        rate = self._rate
        with self._lock:
            level, updated_at = self._levels.pop(key, (float(rate.burst), now))
            level = min(float(rate.burst), level + max(0.0, (now - updated_at).total_seconds()) * rate.per_second)
            allowed = level >= 1.0
            level -= allowed
            self._levels[key] = (level, now)
            if len(self._levels) > _MAX_KEYS:
                self._levels.popitem(last=False)
        return Allowance(
            allowed=allowed,
            limit=rate.burst,
            remaining=int(level),
            reset_seconds=ceil((rate.burst - level) / rate.per_second),
            retry_seconds=0 if allowed else max(1, ceil((1.0 - level) / rate.per_second)),
        )

    def release(self, key: str) -> None:
        """Return a request to the bucket of a key."""
        with self._lock:
            if key in self._levels:
                level, updated_at = self._levels[key]
                self._levels[key] = (min(float(self._rate.burst), level + 1.0), updated_at)
