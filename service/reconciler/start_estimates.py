"""Answering requests for start estimates, with at most one scheduler query per interval."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from service.core.clock import Clock
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.planner.start_estimates import StartEstimateRepository
from service.scheduler.base import Forecast, Forecaster, Scheduler, SchedulerUnavailableError

log = structlog.get_logger("start-estimates")

INTERVAL = timedelta(seconds=5)
"""The least time between two queries."""
_RETENTION = timedelta(hours=1)
_MAX_OPEN = 100


@dataclass
class StartEstimates:
    """Asks the scheduler for the oldest open start estimate when a query is due, and stores the answer."""

    database: Database
    clock: Clock
    scheduler: Scheduler
    lease: LeaderLease
    queried_at: datetime | None = None
    """The last query of this process; the database holds the queries of earlier leaders."""

    def run_once(self) -> bool:
        """Answer the oldest open request; if the scheduler is unavailable, answer all of them with its error.

        Returns:
            Whether more requests are open.

        Raises:
            UnavailableError: the database does not answer.
            LeaseLostError: another service is the leader.
        """
        if not isinstance(self.scheduler, Forecaster):
            return False
        with self.database.read() as session:
            estimates = StartEstimateRepository(session)
            waiting = [(row.id, row.script) for row in estimates.waiting(_MAX_OPEN)]
            last = max(filter(None, (self.queried_at, estimates.last_answered() if waiting else None)), default=None)
        now = self.clock()
        if not waiting or (last is not None and timedelta(0) <= now - last < INTERVAL):
            return bool(waiting)
        self.queried_at = now
        oldest, script = waiting[0]
        answered = [oldest]
        try:
            forecast = self.scheduler.forecast(script)
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            forecast, answered = Forecast(None, f"Slurm does not answer: {error}"), [row_id for row_id, _ in waiting]
        with self.lease.write() as session:
            estimates = StartEstimateRepository(session)
            estimates.answer(
                answered,
                self.clock(),
                accepted=forecast.accepted,
                message=forecast.message,
                estimated_start=forecast.estimated_start,
            )
            estimates.delete_answered(now - _RETENTION)
        return len(answered) < len(waiting)
