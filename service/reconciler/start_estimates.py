"""Answering what people ask of the scheduler: one question every few seconds, however many wait."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from service.api.dependencies import Services
from service.db.leader_lease import LeaderLease
from service.planner.repository import AskRepository
from service.scheduler.base import Forecast, Forecaster, Scheduler, SchedulerUnavailableError

log = structlog.get_logger("asks")

APART = timedelta(seconds=5)
"""Between two questions."""
_KEPT = timedelta(hours=1)
_AT_ONCE = 100


@dataclass
class Asks:
    """Asks when something waits and it is time to, and stores the answer."""

    services: Services
    scheduler: Scheduler
    lease: LeaderLease
    asked_at: datetime | None = None
    """By us; the database knows of those who reconciled before us."""

    def take(self) -> bool:
        """Answer the oldest question; all that wait where the scheduler does not answer.

        Returns:
            Whether more wait.

        Raises:
            UnavailableError: the database does not answer.
            LeaseLostError: another service reconciles now.
        """
        if not isinstance(self.scheduler, Forecaster):
            return False
        with self.services.database.read() as session:
            asks = AskRepository(session)
            waiting = [(ask.id, ask.script) for ask in asks.waiting(_AT_ONCE)]
            last = max(filter(None, (self.asked_at, asks.last_answered() if waiting else None)), default=None)
        now = self.services.clock()
        if not waiting or (last is not None and timedelta(0) <= now - last < APART):
            return bool(waiting)
        self.asked_at = now
        oldest, script = waiting[0]
        answered = [oldest]
        try:
            answer = self.scheduler.forecast(script)
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            answer, answered = Forecast(None, f"Slurm does not answer: {error}"), [ask_id for ask_id, _ in waiting]
        with self.lease.write() as session:
            asks = AskRepository(session)
            asks.answer(
                answered,
                self.services.clock(),
                accepted=answer.accepted,
                message=answer.message,
                estimated_start=answer.estimated_start,
            )
            asks.forget(now - _KEPT)
        return len(answered) < len(waiting)
