"""Decides which failed requests are retried, and when. Pure functions, except for the random jitter."""

import random

from trainyard.client.errors import ConnectionFailedError, TrainyardError

ATTEMPTS = 4
"""Maximum number of times that a request is sent."""

_FIRST_DELAY = 0.2
_MAX_DELAY = 10.0
_MAX_RETRY_AFTER = 60.0
"""Seconds. If the service requests a longer delay, its error is raised instead."""

_TRANSIENT = frozenset({429, 502, 503, 504})
_NOTHING_CHANGED = frozenset({429, 503})
"""Statuses which state that the request had no effect."""


def is_transient(error: TrainyardError) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, ConnectionFailedError) or error.status in _TRANSIENT


def retry_delay(error: TrainyardError, failures: int, *, repeatable: bool = True) -> float | None:
    """Return the seconds before the next try of a request that has failed `failures` times. None: do not retry."""
    if not is_transient(error) or failures >= ATTEMPTS or not (repeatable or error.status in _NOTHING_CHANGED):
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= _MAX_RETRY_AFTER else None
    return backoff(failures)


def backoff(failures: int) -> float:
    """Return the seconds to wait after `failures` failures in a row: exponential, with jitter of 25 %."""
    delay = min(_FIRST_DELAY * 2.0 ** (failures - 1), _MAX_DELAY)
    return delay * random.uniform(0.75, 1.25)  # noqa: S311 (jitter, not a secret)
