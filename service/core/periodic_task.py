"""A thread that does its round again and again, and one sooner when it is told that there is something to do."""

import threading
from collections.abc import Callable

import structlog

from service.core.errors import LeaseLostError, UnavailableError

_STOP_SECONDS = 5.0


class PeriodicTask:
    """For what only the service that reconciles may do, and what no tick is to wait for."""

    def __init__(self, name: str, once: Callable[[], bool], seconds: float):
        """
        Args:
            once: one round; whether there is more to do at once. What it leaves undone, a later one finds.
            seconds: between rounds of which nobody has hinted.
        """
        self._once = once
        self._seconds = seconds
        self._log = structlog.get_logger(name)
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is under way may be left as it is: the next service goes on with it."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=_STOP_SECONDS)

    def hint(self) -> None:
        """There is something to do. Never blocks."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            if not self._round():
                self._wake.wait(self._seconds)
            self._wake.clear()

    def _round(self) -> bool:
        try:
            return self._once()
        except LeaseLostError:
            self._log.info("another service does it now")
        except UnavailableError as error:
            self._log.warning("round failed", error=error.message)
        except Exception:
            # The loop must outlive a bug in one part of it.
            self._log.exception("round failed")
        return False
