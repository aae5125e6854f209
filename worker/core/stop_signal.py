"""A rank's stop request, set by a signal or a file. `worker.engine.step_sync` is where all ranks agree on it."""

import signal
from pathlib import Path
from types import FrameType


class StopSignal:
    """A flag that a signal handler sets at any time and the ranks read between steps."""

    def __init__(self, request: Path) -> None:
        """`request` is the file in which the launcher writes the exit reason."""
        self._request = request
        self._requested = False

    def install(self) -> None:
        """Install the handlers. A request from before that is read from the file."""
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._requested = self._requested or self._request.exists()

    @property
    def requested(self) -> bool:
        """Whether this rank was requested to stop."""
        return self._requested

    def reason(self) -> str:
        """Return the exit reason that the launcher wrote; a signal without a reason is a preemption."""
        try:
            return self._request.read_text().strip()
        except FileNotFoundError:
            return "preempted"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
