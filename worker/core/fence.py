"""The fence of a run directory: only the current attempt of a job may write to it.

When a node loses the contact to Slurm, Slurm ends its job although the processes live on, and the service submits the
next attempt. Both attempts then have the same run directory. The service names the current attempt in `current.json`
before it submits it, and every attempt stops as soon as it reads another attempt's name.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.launch import CurrentAttempt
from worker.core.small_files import read_small_file

_MAX_BYTES = 64 * 1024


class SupersededError(Exception):
    """Another attempt has taken over the run directory, so this attempt must not write to it."""


@dataclass(frozen=True)
class RunFence:
    """The fence as an attempt sees it."""

    run: RunLayout
    attempt_id: str

    def current(self) -> CurrentAttempt | None:
        """Return the current attempt; None if it cannot be read, which proves nothing."""
        try:
            return CurrentAttempt.model_validate_json(read_small_file(self.run.current, _MAX_BYTES))
        except (OSError, ValueError):
            return None

    def superseded(self) -> bool:
        """Return whether another attempt is current."""
        current = self.current()
        return current is not None and current.attempt_id != self.attempt_id

    def check(self) -> None:
        """Raise unless this attempt may write to the run directory.

        Raises:
            SupersededError: Another attempt is current.
        """
        if self.superseded():
            raise SupersededError(f"another attempt than {self.attempt_id} is the job's current one")


class FenceMonitor:
    """Checks the fence every few seconds."""

    def __init__(self, fence: RunFence, interval: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """`interval` is in seconds."""
        self._fence = fence
        self._interval = interval
        self._now = now
        self._next = now() + interval
        self.superseded = False

    def poll(self, *, at_once: bool = False) -> bool:
        """Return whether the attempt was superseded at the last check; `at_once` checks now."""
        if not self.superseded and (at_once or self._now() >= self._next):
            self._next = self._now() + self._interval
            self.superseded = self._fence.superseded()
        return self.superseded
