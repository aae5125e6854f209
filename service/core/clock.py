"""The only source of time in the service; tests pass their own."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current UTC time, time zone included."""
    return datetime.now(UTC)
