"""When a request is sent again, and after how long. Pure: no clock, no socket."""

import random

from trainyard.client.errors import ConnectionFailedError, TrainyardError

ATTEMPTS = 4
"""Of one request, the first included."""

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 10.0
_LONGEST_WISH = 60.0
"""A service that asks for more patience than this gets its error told instead."""

_PASSING = frozenset({429, 502, 503, 504})
_UNDONE = frozenset({429, 503})
"""With these the service says that nothing was changed."""


def is_passing(error: TrainyardError) -> bool:
    """Whether the same request may well succeed a little later."""
    return isinstance(error, ConnectionFailedError) or error.status in _PASSING


def retry_delay(error: TrainyardError, failures: int, *, repeatable: bool = True) -> float | None:
    """Seconds before the next attempt of a request that has failed `failures` times; None: give up."""
    if not is_passing(error) or failures >= ATTEMPTS or not (repeatable or error.status in _UNDONE):
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= _LONGEST_WISH else None
    return backoff(failures)


def backoff(failures: int) -> float:
    """Doubling, with jitter, so that many clients do not come back in one moment."""
    delay = min(_FIRST_DELAY * 2.0 ** (failures - 1), _LONGEST_DELAY)
    return delay * random.uniform(0.75, 1.25)  # noqa: S311 (jitter, not a secret)
