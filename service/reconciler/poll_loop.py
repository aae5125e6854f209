"""When to tick: soon after a hint, often while things change, ever more seldom while they do not."""

import threading
import time
from collections.abc import Callable
from typing import ClassVar

import structlog

from service.core.errors import UnavailableError
from service.core.observability import ServiceMetrics
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.reconciler.reconciler import Reconciler
from service.reconciler.repository import newest_event

log = structlog.get_logger("reconcile")

_IDLE_SECONDS = 5.0
"""Between two looks at the database while there is nothing to ask the scheduler about."""
_ERROR_SECONDS = 60.0
_BREATH_SECONDS = 0.05
_LONGEST_BREATH_SECONDS = 2.0
_RENEW_SECONDS = 5.0
_HUNG_SECONDS = 300.0
"""A tick that takes longer hangs: its lease is left to expire, so that another service can go on."""


def pause(busy: bool, quiet: int, errors: int, tick_seconds: float, slowest_seconds: float) -> float:
    """Seconds until the next tick.

    Args:
        quiet: ticks in a row that changed nothing.
        errors: ticks in a row that failed.
    """
    if errors:
        return min(tick_seconds * 2.0 ** min(errors, 8), _ERROR_SECONDS)
    if not busy:
        return _IDLE_SECONDS
    return max(tick_seconds, min(tick_seconds * 2.0 ** min(quiet, 16), slowest_seconds))


def breath(cpu_seconds: float) -> float:
    """Seconds after a tick before a hint is heeded: the process that ticks also answers requests."""
    return min(max(_BREATH_SECONDS, 3.0 * cpu_seconds), _LONGEST_BREATH_SECONDS)


class ReconcileLoop:
    """Ticks in a thread, and keeps the lease in another while a tick waits for the scheduler."""

    def __init__(self, reconciler: Reconciler, metrics: ServiceMetrics, tick_seconds: float, slowest_seconds: float):
        self.spare: Callable[[], bool] = lambda: False
        """Something small to do while nothing else is; returns whether there is more of it."""
        self._reconciler = reconciler
        self._metrics = metrics
        self._tick_seconds = tick_seconds
        self._slowest_seconds = slowest_seconds
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._tick_started: float | None = None
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._keeper = threading.Thread(target=self._keep, name="lease", daemon=True)

    @property
    def lease(self) -> LeaderLease:
        """For what else only the one that reconciles may do."""
        return self._reconciler.lease

    def start(self) -> None:
        self._thread.start()
        self._keeper.start()

    def hint(self) -> None:
        """There is something to do. Never blocks; a lost hint only costs the pause."""
        self._wake.set()

    def stop(self) -> None:
        """End after the tick in progress, and hand the lease over."""
        self._stopping.set()
        self._wake.set()
        self._keeper.join(timeout=_IDLE_SECONDS)
        self._thread.join(timeout=30)
        if self._thread.is_alive():
            log.warning("a tick is still in progress; its lease is left to expire")
            return
        try:
            self._reconciler.close()
        except UnavailableError as error:
            log.warning("the lease could not be handed over; it expires by itself", error=error.message)

    def _run(self) -> None:
        errors = quiet = 0
        while not self._stopping.is_set():
            self._wake.clear()
            started, cpu = time.monotonic(), time.thread_time()
            self._tick_started = started
            busy = True
            try:
                busy = self._reconciler.run_once()
                errors = 0
            except UnavailableError as error:
                errors += 1
                log.warning("tick failed", error=error.message)
            except Exception:
                # The loop must outlive a bug in one decision; it is counted, logged and seen in Prometheus.
                errors += 1
                log.exception("tick failed")
            self._tick_started = None
            self._metrics.tick(time.monotonic() - started)
            if errors:
                self._metrics.tick_failed()
            quiet = 0 if self._reconciler.changed else quiet + 1
            self._use_spare_time(busy, errors)
            self._stopping.wait(breath(time.thread_time() - cpu))
            if self._wake.wait(pause(busy, quiet, errors, self._tick_seconds, self._slowest_seconds)):
                quiet = 0

    def _use_spare_time(self, busy: bool, errors: int) -> None:
        try:
            while not (busy or errors or self._wake.is_set()) and self.spare():
                pass
        except UnavailableError as error:
            log.warning("spare work was left", error=error.message)
        except Exception:
            log.exception("spare work was left")

    def _keep(self) -> None:
        while not self._stopping.wait(_RENEW_SECONDS):
            started = self._tick_started
            if started is None or time.monotonic() - started > _HUNG_SECONDS:
                continue
            try:
                self._reconciler.renew()
            except UnavailableError as error:
                log.warning("lease not renewed", error=error.message)
            except Exception:
                # Such as of a database that has just become a copy that is only read.
                log.exception("lease not renewed")


class ChangeWatcher:
    """Hints the reconciler about writes of other processes, since replicas of the API cannot call it.

    Every request that needs the reconciler leaves an entry in a job's history.
    """

    SECONDS: ClassVar[float] = 1.0
    """The time between two queries."""

    def __init__(self, database: Database, notify: Callable[[], None]):
        self._database = database
        self._notify = notify
        self._newest: tuple[int, int] | None = None

    def run_once(self) -> bool:
        """Call `notify` if there are new events, whoever wrote them; returns False, since one query reads them all."""
        with self._database.read() as session:
            newest = newest_event(session)
        if newest != self._newest:
            self._newest = newest
            self._notify()
        return False
