"""Backoff for attempts that the scheduler does not accept at present, such as over a limit on queued jobs."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

_FIRST_DELAY = timedelta(seconds=15)
_MAX_DELAY = timedelta(minutes=4)
_MAX_DEFERRED = 5
"""After this many deferred attempts of a group, its further jobs are not submitted."""
_REPETITIONS_PER_MINUTE = 5
"""Per group. A site that refuses hundreds of jobs of a user is called at most ten times a minute."""


@dataclass(frozen=True)
class _Deferral:
    until: datetime
    delay: timedelta
    group: str


@dataclass
class SubmitBackoff:
    """When each deferred attempt may be submitted again. Kept in memory: after a restart, all may be.

    A group has the attempts that the scheduler probably refuses for the same reason.
    """

    _deferred: dict[str, _Deferral] = field(default_factory=dict)
    """Deferrals by attempt id."""
    _repetitions: dict[str, deque[datetime]] = field(default_factory=lambda: defaultdict(deque))
    """The times of the last repetitions, oldest first, by group."""

    def defer(self, attempt_id: str, group: str, now: datetime) -> None:
        """Wait twice as long as the last time."""
        last = self._deferred.get(attempt_id)
        delay = min(last.delay * 2, _MAX_DELAY) if last else _FIRST_DELAY
        self._deferred[attempt_id] = _Deferral(now + delay, delay, group)

    def may_begin(self, attempt_id: str, now: datetime) -> bool:
        """Return whether an attempt may be submitted now; a repetition is counted.

        A clock that was set back does not make the wait longer.
        """
        if attempt_id not in self._deferred:
            return True
        deferral = self._deferred[attempt_id]
        if deferral.until - deferral.delay <= now < deferral.until:
            return False
        times = self._repetitions[deferral.group]
        while times and not timedelta(0) <= now - times[0] < timedelta(minutes=1):
            times.popleft()
        if len(times) >= _REPETITIONS_PER_MINUTE:
            return False
        times.append(now)
        return True

    def is_closed(self, group: str) -> bool:
        """Return whether so many attempts of a group wait that its further jobs wait too."""
        return sum(deferral.group == group for deferral in self._deferred.values()) >= _MAX_DEFERRED

    def clear(self, attempt_id: str) -> None:
        """Forget an attempt that has another outcome."""
        deferral = self._deferred.pop(attempt_id, None)
        if deferral is not None and not any(each.group == deferral.group for each in self._deferred.values()):
            self._repetitions.pop(deferral.group, None)

    def reopen(self, accepted: str, now: datetime) -> None:
        """Let the attempts of a group be submitted at once, because the scheduler has accepted a deferred attempt."""
        group = self._deferred[accepted].group if accepted in self._deferred else None
        for attempt_id, deferral in self._deferred.items():
            if deferral.group == group:
                self._deferred[attempt_id] = _Deferral(now, deferral.delay, group)
