"""Storing the cluster snapshot, with at most one scheduler query per interval."""

from dataclasses import dataclass, field
from datetime import datetime

import structlog

from service.cluster.repository import ClusterRepository
from service.core.clock import Clock, is_due
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.scheduler.backends import BACKENDS
from service.scheduler.base import Scheduler, SchedulerUnavailableError
from trainyard.contract.wire.cluster import ClusterSnapshot

log = structlog.get_logger("cluster-poll")


@dataclass
class ClusterPoll:
    """Queries the scheduler for the cluster snapshot when a query is due, and stores it."""

    database: Database
    clock: Clock
    scheduler: Scheduler
    lease: LeaderLease
    polled_at: datetime | None = None
    """The last query of this process; the database holds the queries of earlier leaders."""
    _is_outdated: bool = field(default=False, init=False)

    def expire(self) -> None:
        """Query at the next call: the scheduler responds again, and the stored error would be shown for a minute."""
        self._is_outdated = True

    def run_once(self) -> None:
        """Store a new snapshot, or the scheduler's error, if the last snapshot is old enough.

        Raises:
            UnavailableError: the database does not answer.
            LeaseLostError: another service is the leader.
        """
        now = self.clock()
        if not self._is_outdated and not self._is_due(now):
            return
        self.polled_at, self._is_outdated = now, False
        result: ClusterSnapshot | str
        try:
            result = self.scheduler.cluster()
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            result = str(error)
        with self.lease.write(is_change=False) as session:
            ClusterRepository(session).store(self.database, self.scheduler.name, now, result)

    def _is_due(self, now: datetime) -> bool:
        interval = BACKENDS[self.scheduler.name].cluster_interval
        if not is_due(self.polled_at, now, interval):
            return False
        with self.database.read() as session:
            self.polled_at = ClusterRepository(session).polled_at(self.scheduler.name)
        # A time in the future was written by a service whose clock was ahead.
        return is_due(self.polled_at, now, interval)
