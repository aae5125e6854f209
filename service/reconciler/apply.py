"""Writing a verdict: the job's move or words and the end of its attempt, in one transaction under the lease."""

from dataclasses import dataclass
from datetime import datetime

import structlog

from service.api.dependencies import Services
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.decide import Verdict
from service.reconciler.snapshot import continuations_without_progress, restarts
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.reports import FinishRecord

log = structlog.get_logger("reconcile")


@dataclass(frozen=True)
class VerdictWriter:
    """Writes them."""

    services: Services
    lease: LeaderLease

    def write(
        self,
        job: Job,
        attempt: Attempt | None,
        verdict: Verdict,
        finish: FinishRecord | None = None,
        failed_node: str | None = None,
    ) -> None:
        """Write a verdict, unless the job moved on since it was made or it only says what the rows say."""
        if attempt is not None and _known_already(job, attempt, verdict):
            return
        now = self.services.clock()
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            fresh = jobs.get_for_update(job.pk)
            if fresh.status != job.status or fresh.attempt_id != job.attempt_id:
                return
            if verdict.ended and attempt is not None:
                row = jobs.get_attempt(attempt.id)
                _end(fresh, row, verdict, restarts(jobs, row, finish), now)
                row.failed_node = failed_node
            elif attempt is not None:
                jobs.get_attempt(attempt.id).estimated_start = verdict.estimated_start
            session.flush()
            if verdict.status is not None:
                log.info("moved", source=fresh.status, target=verdict.status, reason=verdict.reason)
                jobs.transition(fresh, verdict.status, verdict.message or "", reason=verdict.reason)
                if fresh.status in TERMINAL:
                    fresh.finished_at = _finished_at(fresh, finish, now)
            elif verdict.message is not None:
                jobs.set_status_message(fresh, verdict.message)
            self.services.failpoint("apply.before-commit")


def _finished_at(job: Job, finish: FinishRecord | None, now: datetime) -> datetime:
    """When it really ended, which may be while the service was away; a node's clock is believed within reason."""
    if finish is None or job.started_at is None:
        return now
    return min(now, max(job.started_at, finish.time))


def _end(job: Job, attempt: Attempt, verdict: Verdict, restarted: int, now: datetime) -> None:
    """Close an attempt's books; torchrun has `restarted` its ranks so often."""
    barren = continuations_without_progress(job, attempt)
    # A pause is no failure to get on.
    job.continuations_without_progress = (
        min(job.continuations_without_progress, barren) if verdict.status == "paused" else barren
    )
    job.retries_used += restarted + (1 if verdict.spends_retry else 0)
    job.failure = verdict.failure.model_dump(mode="json") if verdict.failure else None
    attempt.ended_at = now
    attempt.exit_reason = verdict.exit_reason


def _known_already(job: Job, attempt: Attempt, verdict: Verdict) -> bool:
    """Whether it only says what the rows say."""
    if verdict.status is not None or verdict.ended or verdict.estimated_start != attempt.estimated_start:
        return False
    return verdict.message in (None, job.status_message)
