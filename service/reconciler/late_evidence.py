"""Ends that the accounting explains only later: the same table judges them again. No job starts or ends by it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError
from sqlalchemy.orm import Session

from service.core.clock import Clock, is_due
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.evidence import Evidence, Verdict, cancelled_text, verdict
from service.reconciler.repository import unexplained_attempts
from service.reconciler.run_dir import UnclaimedAttempt
from service.reconciler.snapshot import stored_exit_record
from service.reconciler.submission.attempts import submitted_job
from service.scheduler.base import Accounting, EndedAs, Observation, Scheduler, SchedulerUnavailableError
from trainyard.contract.wire.jobs import TERMINAL, ConditionCode

END_EXPLAINED = "end_explained"
_OPEN = timedelta(days=1)
"""How long after an end the accounting may explain it."""
_MIN_INTERVAL, _MAX_INTERVAL = timedelta(seconds=30), timedelta(minutes=10)
_MAX_ATTEMPTS = 500

log = structlog.get_logger("late-evidence")


class OpenEvidence(BaseModel):
    """The evidence of an end that the accounting had not recorded. It is stored with the attempt; unknown fields of
    other releases are ignored."""

    end_state: EndedAs | None = None
    message: str = ""
    nodes: tuple[str, ...] = ()
    node_left: bool = False
    prolog_failed: bool = False
    started: bool = False
    """Whether a worker had claimed the attempt in its folder."""
    startup_error: str = ""
    vanished: bool = False
    condition: ConditionCode | None = None
    cancelled_before: bool = False

    def of(self, attempt: Attempt, recorded: Observation | None = None) -> Evidence:
        """Return the evidence, completed by the accounting's later record."""
        observation = Observation(
            "ended",
            self.message,
            self.nodes,
            end_state=self.end_state,
            node_left=self.node_left,
            prolog_failed=self.prolog_failed,
        )
        if recorded is not None:
            # The message before has the reasons of the nodes, which may be in service again.
            with_reasons = f"{recorded.message}; {self.message}"
            message = with_reasons if self.node_left or self.prolog_failed else recorded.message
            observation = replace(
                observation, message=message, end_state=recorded.end_state, canceller=recorded.canceller
            )
        return Evidence(
            observation=observation,
            exit_record=stored_exit_record(attempt),
            claimed=attempt.claimed_at is not None,
            unclaimed=UnclaimedAttempt(self.started, self.startup_error, self.vanished),
            condition=self.condition,
            cancelled_before=self.cancelled_before,
        )


def open_evidence(evidence: Evidence | None) -> dict[str, Any] | None:
    """Return the part of the evidence to be stored if the accounting may still explain the end; otherwise None."""
    observation = evidence.observation if evidence else None
    if evidence is None or observation is None or not observation.unrecorded:
        return None
    stored = OpenEvidence(
        end_state=observation.end_state,
        message=observation.message,
        nodes=observation.nodes,
        node_left=observation.node_left,
        prolog_failed=observation.prolog_failed,
        started=evidence.unclaimed.started,
        startup_error=evidence.unclaimed.startup_error,
        vanished=evidence.unclaimed.vanished,
        condition=evidence.condition,
        cancelled_before=evidence.cancelled_before,
    )
    return stored.model_dump(mode="json")


@dataclass
class LateEvidence:
    """Asks the accounting again about ends that it had not recorded, for a day, and corrects their causes."""

    database: Database
    clock: Clock
    scheduler: Scheduler
    lease: LeaderLease
    runs: Path
    _queried_at: datetime | None = None

    def run_once(self) -> None:
        """Query the accounting if a query is due: the interval is the age of the newest of these ends at the last
        query.

        Raises:
            UnavailableError: the database does not answer.
            LeaseLostError: another service is the leader.
        """
        now = self.clock()
        if not isinstance(self.scheduler, Accounting) or not is_due(self._queried_at, now, _MIN_INTERVAL):
            return
        with self.database.read() as session:
            attempts = unexplained_attempts(session, now - _OPEN, _MAX_ATTEMPTS)
        newest = max((attempt.ended_at for _, attempt in attempts if attempt.ended_at is not None), default=None)
        age = self._queried_at - newest if self._queried_at and newest else timedelta(0)
        if newest is None or not is_due(self._queried_at, now, min(age, _MAX_INTERVAL)):
            return
        self._queried_at = now
        try:
            recorded = self.scheduler.recorded_ends(
                [submitted_job(self.runs, job, attempt) for job, attempt in attempts]
            )
        except SchedulerUnavailableError as error:
            log.warning("accounting unavailable", error=str(error))
            return
        self._explain(attempts, recorded)

    def _explain(self, attempts: list[tuple[Job, Attempt]], recorded: Mapping[str, Observation]) -> None:
        for job, attempt in attempts:
            if attempt.tag in recorded:
                with self.lease.write() as session:
                    _explain(session, self.clock(), job, attempt, recorded[attempt.tag])


def _explain(session: Session, now: datetime, job: Job, attempt: Attempt, recorded: Observation) -> None:
    """Store who ended an attempt, and correct its cause if it was judged otherwise or a user ended it."""
    jobs = JobRepository(session, now)
    row, fresh = jobs.lock_attempt(attempt.id)
    if row.open_evidence is None:
        return
    document, row.open_evidence = row.open_evidence, None
    try:
        stored = OpenEvidence.model_validate(document)
    except ValidationError:
        log.warning("stored evidence is invalid", job=job.id, attempt=row.id)
        return
    evidence = stored.of(row, recorded)
    before, after = verdict(stored.of(row)), verdict(evidence)
    row.scheduler_end = evidence.observation.message if evidence.observation else row.scheduler_end
    if (before.by, before.reason) != (after.by, after.reason) or after.by == "user":
        _correct(jobs, fresh, row, before, after)
    log.info("end explained by the accounting", job=job.id, attempt=row.id, reason=after.reason)


def _correct(jobs: JobRepository, job: Job, attempt: Attempt, before: Verdict, after: Verdict) -> None:
    """Correct the cause of an attempt's end, and of the job's if it ended with it. Neither starts anything."""
    if attempt.exit_reason == before.reason:
        attempt.exit_reason = after.reason
    message = f"attempt {attempt.number}: {after.cause}"
    if after.by == "user" and job.status not in TERMINAL:
        message += ". The job has been continued; `trainyard cancel` ends it."
    data = {"attempt": attempt.number, "exit_reason": after.reason}
    jobs.add_event(job, END_EXPLAINED, message, data=data)
    if job.status_reason == "cancelled_outside" and job.attempt_id == attempt.id:
        jobs.set_status_message(job, cancelled_text(after))
