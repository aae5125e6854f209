"""How often one token may ask: a bucket of requests that fills at a constant rate. Pure but for its memory."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from math import ceil

_REMEMBERED = 10_000


@dataclass(frozen=True)
class Rate:
    """So many requests a second in the long run, and so many at once."""

    per_second: float
    burst: int


@dataclass(frozen=True)
class Allowance:
    """What is left after a request, or after its refusal."""

    allowed: bool
    limit: int
    remaining: int
    reset_seconds: int
    """Until the bucket is full again."""
    retry_seconds: int = 0
    """Until one more request is taken."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"ratelimit-limit", b"%d" % self.limit),
            (b"ratelimit-remaining", b"%d" % self.remaining),
            (b"ratelimit-reset", b"%d" % self.reset_seconds),
        ]


class RateLimiter:
    """One bucket for each key; those not used for longest are forgotten, which fills them."""

    def __init__(self, rate: Rate):
        self._rate = rate
        self._levels: OrderedDict[str, tuple[float, datetime]] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self, key: str, now: datetime) -> Allowance:
        """Take one request out of the key's bucket, if there is one."""
        rate = self._rate
        with self._lock:
            level, seen = self._levels.pop(key, (float(rate.burst), now))
            level = min(float(rate.burst), level + max(0.0, (now - seen).total_seconds()) * rate.per_second)
            allowed = level >= 1.0
            level -= allowed
            self._levels[key] = (level, now)
            if len(self._levels) > _REMEMBERED:
                self._levels.popitem(last=False)
        return Allowance(
            allowed=allowed,
            limit=rate.burst,
            remaining=int(level),
            reset_seconds=ceil((rate.burst - level) / rate.per_second),
            retry_seconds=0 if allowed else max(1, ceil((1.0 - level) / rate.per_second)),
        )
