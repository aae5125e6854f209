"""Recording the outcomes of submissions: each function is one transaction, fenced by the leader lease."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from service.core.clock import Clock
from service.core.failpoints import Failpoint, no_failpoint
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.conditions import Condition, minute_text
from service.jobs.repository import JobRepository
from service.reconciler.submission.pool import Outcome
from service.scheduler.backends import AbsencePolicy
from service.scheduler.base import Accepted, Ambiguous, Postponed, Rejected
from trainyard.contract.wire.reports import Failure

log = structlog.get_logger("submit")

_CANCELLED = "Cancelled before the scheduler accepted it."
_CANCELLED_UNANSWERED = (
    "Cancelled. The scheduler has not answered the submission; if it has the job, it is removed from its queue."
)


def settle(outcome: Outcome, job: Job, attempt: Attempt, attempts: Sequence[Attempt]) -> Outcome:
    """Return the consequence of a scheduler's answer for the job: a refusal only ends a job that was never accepted.

    The site has changed since it accepted the job, and may change again; its user can change the request.
    A refusal that the exclusion of nodes may explain is left to the recorder, which lifts the exclusion.

    Args:
        attempt: The attempt that the answer is about.
        attempts: All attempts of the job.
    """
    was_accepted = job.started_at is not None or any(one.scheduler_id is not None for one in attempts)
    if isinstance(outcome, Rejected) and was_accepted and not _excluded(attempt):
        return Postponed(outcome.message)
    return outcome


def _excluded(attempt: Attempt) -> list[str]:
    return [*dict.fromkeys([*attempt.excluded_nodes, *attempt.cluster_exclusions])]


def refusal_group(job: Job) -> str:
    """Return a key of the jobs that the scheduler probably refuses together."""
    resources = job.spec.get("resources", {})
    return json.dumps([job.created_by, *(resources.get(name) for name in ("partition", "account", "qos"))])


@dataclass(frozen=True)
class OutcomeRecorder:
    """Writes the outcomes of submissions into jobs and attempts."""

    lease: LeaderLease
    clock: Clock
    failpoint: Failpoint = no_failpoint

    def record(
        self,
        job_pk: int,
        attempt_id: str,
        outcome: Accepted | Rejected | Ambiguous,
        note: str = "",
        min_wait: timedelta = timedelta(0),
    ) -> str | None:
        """Record the scheduler's answer, whatever the status of the job is by now.

        Args:
            note: The message of the event, if the job was accepted.
            min_wait: How long a submission without an answer is searched.

        Returns:
            The scheduler id that the attempt has now. If a worker has claimed the attempt, it is the claimant's.
        """
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            job, attempt = jobs.get_for_update(job_pk), jobs.get_attempt(attempt_id)
            scheduler_id = outcome.scheduler_id if isinstance(outcome, Accepted) else None
            name = type(outcome).__name__.lower()
            log.info(
                "submission answered by the scheduler",
                job=job.id,
                attempt=attempt_id,
                scheduler_id=scheduler_id,
                outcome=name,
            )
            if job.attempt_id != attempt_id:
                # An operator has resolved the attempt since; the service would refuse its worker.
                log.warning("answer for a former attempt", attempt=attempt_id, outcome=str(outcome))
            elif attempt.scheduler_id is not None:
                self._record_late(jobs, job, attempt, outcome)
            else:
                self._record_first(jobs, job, attempt, outcome, note, min_wait)
            self.failpoint("record.before-commit")
        return attempt.scheduler_id

    def _record_late(
        self, jobs: JobRepository, job: Job, attempt: Attempt, outcome: Accepted | Rejected | Ambiguous
    ) -> None:
        """Record an answer for an attempt whose scheduler id is known already."""
        if isinstance(outcome, Accepted) and outcome.scheduler_id != attempt.scheduler_id:
            jobs.add_event(
                job, "submitted", f"duplicate submission: the scheduler also has it as {outcome.scheduler_id}"
            )
        else:
            log.info("answer after the worker's claim", attempt=attempt.id, outcome=str(outcome))

    def _record_first(
        self,
        jobs: JobRepository,
        job: Job,
        attempt: Attempt,
        outcome: Accepted | Rejected | Ambiguous,
        note: str,
        min_wait: timedelta,
    ) -> None:
        now = self.clock()
        if attempt.ended_at is not None:
            log.info("answer after the end of the attempt", attempt=attempt.id, outcome=str(outcome))
            if isinstance(outcome, Rejected):
                attempt.last_submit_at = None
            return
        match outcome:
            case Accepted(scheduler_id):
                attempt.scheduler_id, attempt.submitted_at = scheduler_id, now
                jobs.add_event(job, "submitted", note or f"Scheduler job: {scheduler_id}")
                if job.status == "submitting":
                    jobs.transition(job, "pending", "Waiting for the scheduler to start the job.")
            case Rejected(message, _) if excluded := _excluded(attempt):
                # Without these nodes, the request may exceed the size of the cluster.
                names = ", ".join(excluded)
                attempt.excluded_nodes, attempt.cluster_exclusions, attempt.last_submit_at = [], [], None
                text = f"exclusion of {names} lifted, because the scheduler rejected the job: {message}"
                jobs.add_event(job, "node_exclusion_lifted", text, level="warning")
            case Rejected(message, hint):
                failure = Failure(type="SubmissionRefused", message=message, hint=hint or None, final=True)
                job.failure = failure.model_dump(mode="json")
                attempt.ended_at, attempt.exit_reason = now, "rejected"
                jobs.finish(job, "rejected", message)
            case Ambiguous(message):
                attempt.absence_checks, attempt.last_submit_at = 0, now
                log.warning("unconfirmed submission", job=job.id, attempt=attempt.id, tag=attempt.tag, message=message)
                jobs.set_condition(
                    job, Condition("unconfirmed", {"cause": message, "until": minute_text(now + min_wait)})
                )

    def not_submitted(self, job_pk: int, attempt_id: str, message: str) -> None:
        """Record that the scheduler has nothing of the attempt, which is submitted again later."""
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            job, attempt = jobs.get_for_update(job_pk), jobs.get_attempt(attempt_id)
            if attempt.scheduler_id is None:
                attempt.last_submit_at = None
            if attempt.ended_at is not None:
                return
            jobs.set_condition(job, Condition("refused_for_now", {"cause": message}))
            self.failpoint("not-asked.before-commit")

    def count_search(self, attempt_id: str, scheduler_ids: Sequence[str], policy: AbsencePolicy) -> bool:
        """Record a search for an attempt that has ended; return whether it was the last search.

        Args:
            scheduler_ids: The entries that were found in the scheduler's queue and cancelled.
        """
        with self.lease.write() as session:
            now = self.clock()
            jobs = JobRepository(session, now)
            attempt = jobs.get_attempt(attempt_id)
            job = jobs.get_for_update(attempt.job_pk)
            attempt.absence_checks += 1
            submitted = attempt.last_submit_at or now
            is_absent = attempt.absence_checks >= policy.min_lookups and now - submitted >= policy.min_wait
            if scheduler_ids:
                text = f"removed from the scheduler's queue, which had it after the end: {scheduler_ids[0]}"
                jobs.add_event(job, "submitted", text)
            if scheduler_ids or is_absent:
                attempt.last_submit_at = None
            self.failpoint("search-withdrawn.before-commit")
            return bool(scheduler_ids) or is_absent

    def withdraw(self, jobs: JobRepository, job: Job, attempt: Attempt, *, is_certain: bool = True) -> None:
        """End an attempt that the scheduler does not have, because the job is to be paused or cancelled.

        Args:
            is_certain: False: the scheduler may have received it, and its queue is searched afterwards.
        """
        row, fresh = jobs.get_for_update(job.pk), jobs.get_attempt(attempt.id)
        if row.status not in ("submitting", "cancelling", "lost") or fresh.scheduler_id is not None:
            return
        fresh.ended_at = self.clock()
        if is_certain:
            fresh.last_submit_at = None
        else:
            row.open_spool = row.open_spool or fresh.number
        if row.desired == "cancelled":
            fresh.exit_reason = "user_cancelled"
            if row.status == "submitting":
                jobs.transition(row, "cancelling", "Cancellation requested.")
            jobs.finish(row, "user_cancelled", _CANCELLED if is_certain else _CANCELLED_UNANSWERED)
        else:
            fresh.exit_reason = "paused"
            jobs.transition(row, "queued", "Withdrawn before the scheduler accepted it.")
        self.failpoint("give-up.before-commit")
