"""Chooses the failed checkpoints to report: a full disk fails every checkpoint, possibly each minute for days."""

import time
from collections.abc import Callable

_REPEAT_SECONDS = 3600.0


class SaveFailures:
    """Chooses the failures to report: the first of each cause, and then one per hour while the cause lasts."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._cause: tuple[str, int | None] | None = None
        self._reported = 0.0
        self._unreported = 0

    def add(self, step: int, error: BaseException) -> str | None:
        """Return the message for an event; None if the last event has the same cause and is less than an hour old."""
        origin = error.__cause__ or error
        cause = (type(origin).__name__, getattr(origin, "errno", None))
        if cause == self._cause and self._now() - self._reported < _REPEAT_SECONDS:
            self._unreported += 1
            return None
        count, self._unreported = self._unreported, 0
        self._cause, self._reported = cause, self._now()
        message = f"the checkpoint of step {step} could not be written: {error}"
        return f"{message} ({count} more since the last such event)" if count else message

    def reset(self) -> None:
        """Forget the cause: a checkpoint was written."""
        self._cause, self._unreported = None, 0
