"""A wish to stop: a flag set by a signal or a file; `worker.engine.step_sync` is where all ranks agree on it."""

import signal
from pathlib import Path
from types import FrameType


class StopSignal:
    """Set by a handler in the middle of anything; read at step boundaries."""

    def __init__(self, request: Path) -> None:
        self._request = request
        self._wanted = False

    def install(self) -> None:
        """Handle the signals. A request made before the handlers were there is found as a file."""
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._wanted = self._wanted or self._request.exists()

    @property
    def wanted(self) -> bool:
        """Whether this rank has been asked."""
        return self._wanted

    def reason(self) -> str:
        """The exit reason that the launcher left; a signal without one is a preemption."""
        try:
            return self._request.read_text().strip()
        except FileNotFoundError:
            return "preempted"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True
