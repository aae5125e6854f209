"""Attempts that the scheduler would not take yet, and when each is offered to it again."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

_FIRST = timedelta(seconds=15)
_LONGEST = timedelta(minutes=4)
"""A sweep of hundreds beyond the limit is then a question a second to the controller, and no more."""


@dataclass
class Postponements:
    """Kept in memory alone: a restart asks at once."""

    _until: dict[str, tuple[datetime, timedelta]] = field(default_factory=dict)
    """The next moment and the pause before it, by attempt."""

    def put_off(self, attempt_id: str, now: datetime) -> None:
        """Twice as long as the last time."""
        pause = min(self._until[attempt_id][1] * 2, _LONGEST) if attempt_id in self._until else _FIRST
        self._until[attempt_id] = (now + pause, pause)

    def waits(self, attempt_id: str, now: datetime) -> bool:
        """Whether it is too early; a clock that was set back makes it no later."""
        if attempt_id not in self._until:
            return False
        until, pause = self._until[attempt_id]
        return until - pause <= now < until

    def forget(self, attempt_id: str) -> None:
        """It has another answer."""
        self._until.pop(attempt_id, None)
