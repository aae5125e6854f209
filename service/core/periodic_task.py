"""A thread that runs a function periodically, and sooner on request."""

import threading
from collections.abc import Callable

import structlog

from service.core.errors import LeaseLostError, UnavailableError

_STOP_SECONDS = 5.0


class PeriodicTask:
    """Runs work of the leader that no tick should wait for."""

    def __init__(self, name: str, once: Callable[[], bool], seconds: float):
        """
        Args:
            once: an iteration; returns whether more work is ready. The next iteration resumes unfinished work.
            seconds: pause between iterations that nobody requested.
        """
        self.name = name
        self._once = once
        self._seconds = seconds
        self._log = structlog.get_logger(name)
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait at most 5 seconds; the next service resumes unfinished work."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=_STOP_SECONDS)

    def is_stopping(self) -> bool:
        """Return whether `stop` was called; a long iteration ends then."""
        return self._stopping

    def notify(self) -> None:
        """Request an iteration now. Never blocks."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            if not self._run_iteration():
                self._wake.wait(self._seconds)
            self._wake.clear()

    def _run_iteration(self) -> bool:
        try:
            return self._once()
        except LeaseLostError:
            self._log.info("lease lost; another service is the leader")
        except UnavailableError as error:
            self._log.warning("iteration failed", error=error.message)
        except Exception:
            # The thread must survive a bug in an iteration.
            self._log.exception("iteration failed")
        return False
