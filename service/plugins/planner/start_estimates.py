"""Start estimates: a request is stored as a row, and the reconciler answers it with `sbatch --test-only`, at most one
per interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from service.core.clock import Clock
from service.core.errors import NotFoundError, TooManyRequestsError
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import StartEstimate
from service.scheduler.base import Forecast, Forecaster, Scheduler, SchedulerUnavailableError
from trainyard.contract.wire.plans import StartEstimateResource

log = structlog.get_logger("start-estimates")

INTERVAL = timedelta(seconds=5)
"""The least time between two queries."""
_RETENTION = timedelta(hours=1)
_MAX_OPEN = 100
_MAX_WAITING = 20
"""Maximum number of waiting requests of all users. The scheduler needs several seconds for each estimate."""

NO_QUEUE = StartEstimateResource(
    state="answered",
    message="the local backend has no queue: a job starts as soon as this machine has free slots",
)
NO_SCRIPT = StartEstimateResource(
    state="answered", message="there is no batch script to estimate; `warnings` gives the reason"
)


class StartEstimateRepository:
    """Start estimates within a session."""

    def __init__(self, session: Session):
        self._session = session

    def add(self, estimate: StartEstimate) -> None:
        self._session.add(estimate)

    def get(self, estimate_id: str) -> StartEstimate:
        """Raises NotFoundError."""
        estimate = self._session.get(StartEstimate, estimate_id)
        if estimate is None:
            message = f"there is no start estimate {estimate_id!r}"
            raise NotFoundError(message, code="start_estimate_not_found", param="estimate_id")
        return estimate

    def waiting(self, limit: int) -> Sequence[StartEstimate]:
        """Return the estimates without an answer, oldest first."""
        query = (
            sa.select(StartEstimate).where(StartEstimate.answered_at.is_(None)).order_by(StartEstimate.id).limit(limit)
        )
        return self._session.scalars(query).all()

    def last_answered(self) -> datetime | None:
        """Return when the scheduler last answered a request of any service of this database."""
        return self._session.scalar(sa.select(sa.func.max(StartEstimate.answered_at)))

    def answer(
        self,
        estimate_ids: Sequence[str],
        now: datetime,
        *,
        accepted: bool | None,
        message: str,
        estimated_start: datetime | None = None,
    ) -> None:
        """Store the same answer for all of these estimates."""
        row = {"answered_at": now, "accepted": accepted, "message": message, "estimated_start": estimated_start}
        self._session.execute(sa.update(StartEstimate).where(StartEstimate.id.in_(estimate_ids)).values(row))

    def delete_answered(self, before: datetime) -> None:
        """Delete the estimates that were answered before this time."""
        self._session.execute(sa.delete(StartEstimate).where(StartEstimate.answered_at < before))


def request_estimate(
    database: Database, estimate_id: str, created_by: str, script: str, now: datetime
) -> StartEstimateResource:
    """Store a request for the start estimate of a batch script.

    Raises:
        TooManyRequestsError: Too many requests already wait for an answer.
    """
    row = StartEstimate(id=estimate_id, created_by=created_by, created_at=now, script=script)
    with database.write() as session:
        estimates = StartEstimateRepository(session)
        if len(estimates.waiting(_MAX_WAITING)) == _MAX_WAITING:
            raise TooManyRequestsError(f"{_MAX_WAITING} start estimates wait for the scheduler already")
        estimates.add(row)
        session.flush()
        return _resource(row)


def read_estimate(database: Database, estimate_id: str) -> StartEstimateResource:
    """Raises NotFoundError: the estimate was never requested, or was answered more than an hour ago."""
    with database.read() as session:
        return _resource(StartEstimateRepository(session).get(estimate_id))


def _resource(row: StartEstimate) -> StartEstimateResource:
    return StartEstimateResource(
        id=row.id,
        state="waiting" if row.answered_at is None else "answered",
        created_at=row.created_at,
        answered_at=row.answered_at,
        accepted=row.accepted,
        estimated_start=row.estimated_start,
        message=row.message or "waiting for the scheduler's answer",
    )


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
