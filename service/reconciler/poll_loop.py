"""When to tick: soon after a hint, often while jobs change, and less often while nothing changes."""

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

log = structlog.get_logger("reconciler")

_IDLE_SECONDS = 5.0
"""The pause while no job needs the scheduler."""
_ENDING_SECONDS, _ENDING_TICKS = 2.0, 100
"""The longest pause while a user waits for the end of an attempt, and how many ticks without a change it applies to: an
end may last for days on a node that cannot kill its processes."""
_MAX_ERROR_SECONDS = 60.0
_MIN_HINT_COOLDOWN_SECONDS = 0.05
_MAX_HINT_COOLDOWN_SECONDS = 2.0
_RENEW_SECONDS = 5.0
_HUNG_SECONDS = 300.0
"""A tick that takes longer counts as hung: its lease is left to expire, so that another service can take over."""


def pause_seconds(
    busy: bool, quiet: int, errors: int, tick_seconds: float, max_tick_seconds: float, *, ends_attempts: bool = False
) -> float:
    """Return the seconds until the next tick without a hint.

    Args:
        busy: Whether any job needs further ticks.
        quiet: Ticks in a row that changed nothing.
        errors: Ticks in a row that failed.
        ends_attempts: Whether a user waits for the end of an attempt.
    """
    if errors:
        return min(tick_seconds * 2.0 ** min(errors, 8), _MAX_ERROR_SECONDS)
    if not busy:
        return _IDLE_SECONDS
    if ends_attempts and quiet <= _ENDING_TICKS:
        max_tick_seconds = min(max_tick_seconds, _ENDING_SECONDS)
    return max(tick_seconds, min(tick_seconds * 2.0 ** min(quiet, 16), max_tick_seconds))


def hint_cooldown(cpu_seconds: float) -> float:
    """Return the seconds between a tick and the next tick that a hint starts: the same process also serves requests.

    Args:
        cpu_seconds: CPU time of the last tick.
    """
    return min(max(_MIN_HINT_COOLDOWN_SECONDS, 3.0 * cpu_seconds), _MAX_HINT_COOLDOWN_SECONDS)


class ReconcileLoop:
    """Runs ticks in one thread, and renews the lease in another while a tick waits for the scheduler."""

    def __init__(self, reconciler: Reconciler, metrics: ServiceMetrics, tick_seconds: float, max_tick_seconds: float):
        self.idle_work: Callable[[], bool] = lambda: False
        """Called while no job needs a tick; returns whether more work remains."""
        self.reconciler = reconciler
        self._metrics = metrics
        self._tick_seconds = tick_seconds
        self._max_tick_seconds = max_tick_seconds
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._tick_started: float | None = None
        self._tick_thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._lease_thread = threading.Thread(target=self._renew_lease, name="lease", daemon=True)

    @property
    def lease(self) -> LeaderLease:
        """The lease, for other tasks that only the leader may run."""
        return self.reconciler.lease

    def start(self) -> None:
        self._tick_thread.start()
        self._lease_thread.start()

    def hint(self) -> None:
        """Request a tick soon. Never blocks; a lost hint only delays the work."""
        self._wake.set()

    def stop(self) -> None:
        """Stop after the tick in progress, and release the lease."""
        self._stopping.set()
        self._wake.set()
        self._lease_thread.join(timeout=_IDLE_SECONDS)
        self._tick_thread.join(timeout=30)
        if self._tick_thread.is_alive():
            log.warning("a tick is still in progress; its lease is left to expire")
            return
        try:
            self.reconciler.close()
        except UnavailableError as error:
            log.warning("the lease could not be released and will expire", error=error.message)

    def _run(self) -> None:
        errors = quiet = 0
        while not self._stopping.is_set():
            self._wake.clear()
            started, cpu = time.monotonic(), time.thread_time()
            self._tick_started = started
            busy = True
            try:
                busy = self.reconciler.run_once()
                errors = 0
            except UnavailableError as error:
                errors += 1
                log.warning("tick failed", error=error.message)
            except Exception:
                # The loop must outlive a bug in one decision, which is counted and logged.
                errors += 1
                log.exception("tick failed")
            self._tick_started = None
            self._metrics.tick(time.monotonic() - started)
            if errors:
                self._metrics.tick_failed()
            quiet = 0 if self.reconciler.changed else quiet + 1
            self._run_idle_work(busy, errors)
            self._stopping.wait(hint_cooldown(time.thread_time() - cpu))
            limits, ends_attempts = (self._tick_seconds, self._max_tick_seconds), self.reconciler.ends_attempts
            if self._wake.wait(pause_seconds(busy, quiet, errors, *limits, ends_attempts=ends_attempts)):
                quiet = 0

    def _run_idle_work(self, busy: bool, errors: int) -> None:
        try:
            while not (busy or errors or self._wake.is_set()) and self.idle_work():
                pass
        except UnavailableError as error:
            log.warning("idle work failed", error=error.message)
        except Exception:
            log.exception("idle work failed")

    def _renew_lease(self) -> None:
        while not self._stopping.wait(_RENEW_SECONDS):
            started = self._tick_started
            if started is None or time.monotonic() - started > _HUNG_SECONDS:
                continue
            try:
                self.reconciler.renew()
            except UnavailableError as error:
                log.warning("lease not renewed", error=error.message)
            except Exception:
                # For example, a database that has just become a read-only replica.
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
        """Call `notify` if there are new events, whoever wrote them; returns False, since a single query reads them
        all."""
        with self._database.read() as session:
            newest = newest_event(session)
        if newest != self._newest:
            self._newest = newest
            self._notify()
        return False
