"""The only source of time in the service; tests pass their own."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current UTC time, time zone included."""
    return datetime.now(UTC)


def is_due(last: datetime | None, now: datetime, interval: timedelta) -> bool:
    """Return whether the last time is at least an interval ago. A clock that was set back must not delay the next."""
    return last is None or not timedelta(0) <= now - last < interval
