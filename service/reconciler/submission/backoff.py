"""Backoff for attempts that the scheduler does not accept at present, such as over a limit on queued jobs."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

_FIRST_DELAY = timedelta(seconds=15)
_MAX = timedelta(minutes=4)
"""With hundreds of deferred jobs, the controller gets about one submission per second."""


@dataclass
class SubmitBackoff:
    """When each deferred attempt may be submitted again. Kept in memory: after a restart, all may be."""

    _deferred: dict[str, tuple[datetime, timedelta]] = field(default_factory=dict)
    """The next time and the delay before it, by attempt id."""

    def defer(self, attempt_id: str, now: datetime) -> None:
        """Wait twice as long as the last time."""
        delay = min(self._deferred[attempt_id][1] * 2, _MAX) if attempt_id in self._deferred else _FIRST_DELAY
        self._deferred[attempt_id] = (now + delay, delay)

    def is_waiting(self, attempt_id: str, now: datetime) -> bool:
        """Return whether it is too early. A clock that was set back does not make the wait longer."""
        if attempt_id not in self._deferred:
            return False
        until, delay = self._deferred[attempt_id]
        return until - delay <= now < until

    def clear(self, attempt_id: str) -> None:
        """Forget an attempt that has another outcome."""
        self._deferred.pop(attempt_id, None)
