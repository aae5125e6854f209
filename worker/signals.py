"""A wish to stop: a flag set by a signal or a file, and the step boundary at which all ranks agree on it."""

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType


class StopSignal:
    """Set by a handler in the middle of anything; read at step boundaries."""

    def __init__(self, request: Path) -> None:
        self._request = request
        self._wanted = False
        self._any: Callable[[bool], bool] = bool

    def install(self) -> None:
        """Handle the signals. A request made before the handlers were there is found as a file."""
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._wanted = self._wanted or self._request.exists()

    def bind(self, any_rank: Callable[[bool], bool]) -> None:
        """How to learn whether any rank has the flag."""
        self._any = any_rank

    def agreed(self) -> bool:
        """Whether any rank wants to stop: the same answer on every rank. A collective."""
        return self._any(self._wanted)

    def reason(self) -> str:
        """The exit reason that the launcher left; a signal without one is a preemption."""
        try:
            return self._request.read_text().strip()
        except FileNotFoundError:
            return "preempted"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True
