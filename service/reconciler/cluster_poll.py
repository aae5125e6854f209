"""Taking the cluster's snapshot: one question to the scheduler a minute at most, whoever reads it and however often."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from service.api.dependencies import Services
from service.cluster.repository import ClusterRepository
from service.db.leader_lease import LeaderLease
from service.scheduler.base import Scheduler, SchedulerUnavailableError
from trainyard.contract.wire.cluster import ClusterSnapshot

log = structlog.get_logger("survey")

APART = {"slurm": timedelta(seconds=60), "local": timedelta(seconds=5)}
"""Between two questions. The local queue is this service's own."""


@dataclass
class Survey:
    """Asks when it is time to, and stores the answer."""

    services: Services
    scheduler: Scheduler
    lease: LeaderLease
    asked_at: datetime | None = None
    """By us; the database knows of those who reconciled before us."""

    def take(self) -> None:
        """Store a new snapshot if the last one is old enough.

        Raises:
            UnavailableError: the database does not answer.
            LeaseLostError: another service reconciles now.
        """
        now = self.services.clock()
        if not self._is_due(now):
            return
        self.asked_at = now
        answer: ClusterSnapshot | str
        try:
            answer = self.scheduler.cluster()
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            answer = str(error)
        with self.lease.write(counts=False) as session:
            ClusterRepository(session).keep(self.services.database, self.scheduler.name, now, answer)

    def _is_due(self, now: datetime) -> bool:
        apart = APART[self.scheduler.name]
        if self.asked_at is not None and timedelta(0) <= now - self.asked_at < apart:
            return False
        with self.services.database.read() as session:
            self.asked_at = ClusterRepository(session).asked_at(self.scheduler.name)
        # One from the future is of a clock that was ahead.
        return self.asked_at is None or not timedelta(0) <= now - self.asked_at < apart
