"""Applying a decision: the job's transition or status message and the end of its attempt, in one fenced transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy.orm import Session

from service.cluster.repository import NodeFaultRepository
from service.cluster.schemas import excluded_node_resource
from service.core.clock import Clock
from service.core.failpoints import Failpoint, no_failpoint
from service.db.leader_lease import LeaderLease
from service.db.listeners import listeners_of
from service.db.models import Attempt, Job, NodeFault
from service.db.paging import PageRequest
from service.jobs.conditions import has_message
from service.jobs.repository import JobRepository
from service.reconciler.decide import Decision
from service.reconciler.evidence import Evidence
from service.reconciler.late_evidence import open_evidence
from service.reconciler.node_exclusion import Fault
from service.reconciler.repository import repeated_steps
from service.reconciler.snapshot import restarts
from trainyard.contract.spec.training_spec import NODE_TEST
from trainyard.contract.wire.jobs import TERMINAL, JobStatus
from trainyard.contract.wire.reports import FinishRecord

STEPS_REPEATED = "steps_repeated"
MAX_NAMED = 20
"""Metrics that the event names."""
_MAX_MESSAGE = 1000
"""Characters of Slurm's words that are stored with the fault of a node."""

log = structlog.get_logger("reconciler")


@dataclass(frozen=True)
class DecisionWriter:
    """Applies decisions under the leader lease."""

    lease: LeaderLease
    clock: Clock
    failpoint: Failpoint = no_failpoint

    def apply(
        self,
        job: Job,
        attempt: Attempt | None,
        decision: Decision,
        exit_record: FinishRecord | None = None,
        fault: Fault | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        """Apply a decision, unless the job has changed since it was loaded or the rows already say the same.

        Args:
            exit_record: The record of an attempt that ends; read from disk if the worker could not send it.
            fault: Which node made it fail, and how.
            evidence: The evidence of the end, with the scheduler's own report.

        Raises:
            LeaseLostError: another service is the leader; nothing was written.
        """
        if attempt is not None and _changes_nothing(job, attempt, decision):
            return
        now = self.clock()
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            fresh = jobs.get_for_update(job.pk)
            row = jobs.get_attempt(attempt.id) if attempt is not None else None
            has_changed = fresh.status != job.status or fresh.attempt_id != job.attempt_id
            if has_changed or (decision.ended and _has_reported(attempt, row)):
                return
            end = _end_time(attempt, exit_record, now)
            if decision.ended and row is not None:
                _end_attempt(fresh, row, decision, restarts(jobs, row, exit_record), end, evidence)
                _add_repeats(jobs, fresh, repeated_steps(session, fresh.pk, row.executions))
                _add_fault(session, fresh, row, fault, now)
                if exit_record is None:
                    fresh.open_spool = row.number
                elif row.finish is None:
                    row.finish = exit_record.model_dump(mode="json")
            elif row is not None:
                row.estimated_start = decision.estimated_start
                if decision.request_stop and row.stop_requested_at is None:
                    row.stop_requested_at = now
            _keep_paused(fresh, decision, exit_record)
            session.flush()
            if decision.status is not None:
                log.info("transition", source=fresh.status, target=decision.status, reason=decision.reason)
                _change_status(jobs, fresh, decision, decision.status, end)
            elif (message := decision.new_message) is not None:
                jobs.set_status_message(fresh, message, decision.condition)
            self.failpoint("apply.before-commit")

    def close_spool(self, job: Job) -> None:
        """Record that the reports of the attempt with the number `job.open_spool` are stored."""
        with self.lease.write() as session:
            fresh = JobRepository(session, self.clock()).get_for_update(job.pk)
            # Meanwhile, a user may have resolved the job, which leaves the spool of a later attempt open.
            if fresh.open_spool == job.open_spool:
                fresh.open_spool = None


def _has_reported(loaded: Attempt | None, row: Attempt | None) -> bool:
    """Return whether the worker began an execution or ended since its attempt was loaded. The next tick decides."""
    if loaded is None or row is None:
        return False
    return (row.execution, row.finish) != (loaded.execution, loaded.finish)


def _changes_nothing(job: Job, attempt: Attempt, decision: Decision) -> bool:
    if decision.status is not None or decision.ended or decision.estimated_start != attempt.estimated_start:
        return False
    if decision.request_stop and attempt.stop_requested_at is None:
        return False
    message = decision.new_message
    return message is None or has_message(job, message, decision.condition)


def _end_attempt(
    job: Job, attempt: Attempt, decision: Decision, restart_count: int, ended_at: datetime, evidence: Evidence | None
) -> None:
    """Record the end of an attempt and the retries that it used.

    Args:
        restart_count: In-place restarts of the ranks; each used a retry.
    """
    job.continuations_without_progress = decision.continuations or 0
    job.retries_used += restart_count + (1 if decision.uses_retry else 0)
    job.failure = decision.failure.model_dump(mode="json") if decision.failure else None
    attempt.ended_at = ended_at
    attempt.exit_reason = decision.exit_reason
    attempt.scheduler_end = (evidence and evidence.observation and evidence.observation.message) or None
    attempt.open_evidence = open_evidence(evidence)


def _add_fault(session: Session, job: Job, attempt: Attempt, fault: Fault | None, now: datetime) -> None:
    """Record the node that made the attempt fail, if known. If all jobs avoid it from now on, notify administrators.

    Tests of nodes report to who has started them, often in the middle of a repair.
    """
    if fault is None:
        return
    attempt.failed_node = fault.node
    if NODE_TEST in job.labels:
        return
    faults = NodeFaultRepository(session, now)
    before = {node.name for node in faults.exclusions(attempt.scheduler).nodes}
    faults.add(
        NodeFault(
            attempt_id=attempt.id,
            node=fault.node,
            job_id=job.id,
            created_by=job.created_by,
            attempt=attempt.number,
            kind=fault.kind,
            message=fault.message[:_MAX_MESSAGE],
            created_at=now,
        )
    )
    session.flush()
    for node in faults.exclusions(attempt.scheduler).nodes:
        if node.name not in before:
            log.warning("all jobs avoid a node", node=node.name, cause=node.cause, until=node.until.isoformat())
            resource = excluded_node_resource(node).model_dump(mode="json")
            for listener in listeners_of(session):
                listener.node_excluded(session, resource, now)


def _add_repeats(jobs: JobRepository, job: Job, executions: Mapping[int, Sequence[tuple[str, int]]]) -> None:
    """Add an event for each execution whose program logged steps again."""
    for execution, repeats in executions.items():
        total, named = sum(count for _, count in repeats), [name for name, _ in repeats[:MAX_NAMED]]
        metrics = named[0] if len(repeats) == 1 else f"{len(repeats)} metrics, such as {', '.join(named)}"
        counts = [{"metric": name, "count": count} for name, count in repeats[:MAX_NAMED]]
        data = {"execution": execution, "metrics": len(repeats), "repeats": counts}
        message = f"{total} repeated step{'s'[: total > 1]} of {metrics}; the last values are kept"
        jobs.add_event(job, STEPS_REPEATED, message, data=data)


def _keep_paused(job: Job, decision: Decision, exit_record: FinishRecord | None) -> None:
    """After a pause at a step that was fixed before, let the job stay so until somebody wants it to go on."""
    if decision.status == "paused" and exit_record is not None and exit_record.reason == "paused":
        job.desired = "paused"


def _end_time(attempt: Attempt | None, exit_record: FinishRecord | None, now: datetime) -> datetime:
    """Return the end of the attempt, and of the job if it ends too: the time of the exit record. It is limited to
    start..now, since nodes' clocks may be wrong."""
    if attempt is None or attempt.claimed_at is None or exit_record is None:
        return now
    return min(now, max(attempt.claimed_at, exit_record.time))


def _change_status(jobs: JobRepository, job: Job, decision: Decision, status: JobStatus, ended_at: datetime) -> None:
    """Change the status. The event of an end gets the time of the end, but never precedes the last event."""
    message, condition = decision.new_message or "", decision.condition
    jobs.transition(job, status, message, reason=decision.reason, ended_at=ended_at, condition=condition)
    if job.status not in TERMINAL:
        return
    (end, *before), _ = jobs.list_events(job, PageRequest(2, None, descending=True))
    end.created_at = max([ended_at, *(event.created_at for event in before)])
