"""The worker protocol: claim, heartbeat, events, checkpoints and exit record of an attempt.

Each call is one transaction and can be repeated without effect.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Literal

from service.attempts.repository import AttemptRepository
from service.checkpoints.ranking import best_criterion
from service.core.errors import ConflictError
from service.core.ids import new_checkpoint_id
from service.core.sentences import begin_with_capital
from service.db.engine import Database
from service.db.listeners import listeners_of
from service.db.models import Attempt, Checkpoint, Event, Job
from service.jobs.conditions import Condition
from service.jobs.editing import EDITED
from service.jobs.parameters import ProgramNames, Reported, merge
from service.jobs.repository import JobRepository
from service.jobs.schemas import shown_metrics
from service.jobs.service import pending_profile
from service.jobs.table.values import reported_values
from service.media.repository import MediaRepository
from service.scheduler.backends import names_entries
from trainyard.contract.base import sanitize
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.spec.training_spec import UNTITLED
from trainyard.contract.spec.user_code import GIT_REPOSITORY, program_name
from trainyard.contract.wire.media import MAX_JOB_MEDIA, MAX_MEDIA_KEYS, MediaReport
from trainyard.contract.wire.reports import (
    MAX_PARAMETER_CHARS,
    MAX_PARAMETERS,
    CheckpointReport,
    Claim,
    ClaimGrant,
    EventsBatch,
    FinishRecord,
    HeartbeatReply,
    ParametersReport,
    WorkerEvent,
)
from trainyard.contract.wire.worker_events import ALERTS, STALL_OVER, STALL_SUSPECTED, WORKER_PREFIX

CLAIMABLE = frozenset({"submitting", "pending", "running", "lost"})
"""Job statuses in which an attempt may be claimed."""
REPORTS_REJECTED = "reports_rejected"
PARAMETERS_DROPPED = "parameters_dropped"
MAX_ALERTS = 100
"""Maximum number of a job's alerts that webhooks deliver. All are in its history."""
_MAX_DETAILS = 1000
"""Characters of a worker's message that become the job's message."""
MEDIA_DROPPED = "media_dropped"


class AttemptService:
    """Stores the reports of an attempt, from its worker or, after its end, from its run directory."""

    def __init__(
        self,
        database: Database,
        attempt_id: str,
        now: datetime,
        count: Callable[[str, int], None] = lambda _kind, _amount: None,
        secret_values: Callable[[str, Collection[str]], dict[str, str]] = lambda _owner, _names: {},
        *,
        late: bool = False,
    ):
        """
        Args:
            late: Whether to accept reports of an ended attempt, from its spool.
            count: Called with the kind and the number of the stored items.
            secret_values: Returns the values of a user's secrets by name.
        """
        self._database = database
        self._attempt_id = attempt_id
        self._now = now
        self._count = count
        self._secret_values = secret_values
        self._late = late

    def _lock(self, jobs: JobRepository) -> tuple[Attempt, Job]:
        return jobs.lock_attempt(self._attempt_id) if self._late else jobs.lock_open_attempt(self._attempt_id)

    def claim(self, claim: Claim) -> ClaimGrant:
        """Grant the attempt to its first claimant.

        Raises:
            ConflictError: Another run has claimed it, or it is no longer current. The worker exits without a trace.
        """
        with self._database.write() as session:
            jobs, attempts = JobRepository(session, self._now), AttemptRepository(session)
            attempt, job = jobs.lock_attempt(self._attempt_id)
            current = job.attempt_id == attempt.id and job.desired == "run" and job.status in CLAIMABLE
            nodes = list(dict.fromkeys([*attempt.nodes, *claim.node_names]))
            if not current or not attempts.claim(attempt.id, claim.nonce, self._now, nodes):
                raise ConflictError(f"attempt {attempt.number} of job {job.id} must not run", code="claim_refused")
            if names_entries(attempt.scheduler) and claim.scheduler_id not in (None, attempt.scheduler_id):
                # If an attempt has several scheduler entries, the claimant's entry is observed, not the entry that
                # sbatch returned.
                attempt.scheduler_id = claim.scheduler_id
                attempt.submitted_at = attempt.submitted_at or self._now
                jobs.add_event(job, "submitted", f"Scheduler job: {claim.scheduler_id}")
            if job.status != "running":
                jobs.transition(job, "running", f"Running on {claim.where}.")
                job.progress = _without_estimate(job.progress)
            execution, owner, names = attempt.execution, job.created_by, job.spec["environment"].get("secrets", ())
        return ClaimGrant(execution=execution, secrets=self._secret_values(owner, names))

    def heartbeat(self) -> HeartbeatReply:
        """Record a heartbeat and return the stop request or trace request for the worker."""
        with self._database.write() as session:
            jobs = JobRepository(session, self._now)
            attempt, job = jobs.lock_attempt(self._attempt_id)
            attempt.heartbeat_at = self._now
            # An ended attempt has left the queue, and the job may have another before the worker reads the reply.
            replaced = job.attempt_id != attempt.id or attempt.ended_at is not None
            if job.desired == "cancelled" or replaced:
                return HeartbeatReply(stop="cancel")
            end = attempt.limit_ends_at
            left = None if end is None else max(0.0, (end - self._now).total_seconds())
            pausing = job.desired == "paused" or job.status == "pausing" or attempt.stop_requested_at is not None
            stop: Literal["pause"] | None = "pause" if pausing else None
            return HeartbeatReply(stop=stop, profile=pending_profile(jobs, job, attempt), seconds_left=left)

    def events(self, batch: EventsBatch) -> int:
        """Add events to the job's history, each once; return their number."""
        with self._database.write() as session:
            jobs, attempts = JobRepository(session, self._now), AttemptRepository(session)
            attempt, job = self._lock(jobs)
            _check_execution(attempt, batch.execution)
            for event in batch.events:
                sequence = jobs.next_sequence(job)
                if attempts.has_event(job.pk, batch.execution, event.sequence):
                    continue
                row = Event(
                    job_pk=job.pk,
                    sequence=sequence,
                    type=WORKER_PREFIX + event.type,
                    level=event.level,
                    message=begin_with_capital(event.message),
                    data=event.model_dump(mode="json")["data"],
                    created_at=self._now,
                    execution=batch.execution,
                    worker_sequence=event.sequence,
                )
                if event.type in ALERTS and attempts.count_events(job.pk, row.type) < MAX_ALERTS:
                    for listener in listeners_of(session):
                        listener.alert_raised(session, job, row, self._now)
                session.add(row)
                if not self._late and job.attempt_id == attempt.id and job.status == "running":
                    _note_stall(jobs, job, event)
        self._count("events", len(batch.events))
        return len(batch.events)

    def checkpoint(self, report: CheckpointReport) -> None:
        """Record a complete checkpoint and the steps that retention deleted.

        Reports from before a retry from scratch are ignored.
        """
        with self._database.write() as session:
            jobs, attempts = JobRepository(session, self._now), AttemptRepository(session)
            attempt, job = self._lock(jobs)
            _check_execution(attempt, report.execution)
            if report.execution < job.first_execution:
                return
            sequence = jobs.next_sequence(job)
            row = attempts.find_checkpoint(job.pk, report.step)
            if self._late and (row is not None or report.step <= (job.last_checkpoint_step or 0)):
                # The next attempt has gone on, and its reports about checkpoints are newer.
                return
            if row is None:
                row = Checkpoint(id=new_checkpoint_id(self._now), job_pk=job.pk, step=report.step, execution=0)
                session.add(row)
            if report.execution >= row.execution:
                _update_checkpoint(row, report, sequence, job.spec["checkpoint"]["keep_best"])
                job.last_checkpoint_step = report.step
            session.flush()
            attempts.mark_checkpoints_deleted(job.pk, report.removed_steps, self._now)
            attempts.forget_checkpoints(job.pk, row)
        self._count("checkpoints", 1)

    def parameters(self, report: ParametersReport) -> None:
        """Merge a program's parameters, tags and notes into the job's.

        Values of a later execution stay, and reports from before a retry from scratch are ignored.
        """
        with self._database.write() as session:
            jobs, attempts = JobRepository(session, self._now), AttemptRepository(session)
            attempt, job = self._lock(jobs)
            _check_execution(attempt, report.execution)
            if report.execution < job.first_execution:
                return
            before = Reported.from_json(job.parameters)
            merged, dropped = merge(before, report)
            if dropped and jobs.last_event(job, PARAMETERS_DROPPED, since=None) is None:
                message = (
                    f"at most {MAX_PARAMETERS} parameters and tags, of {MAX_PARAMETER_CHARS} characters, are stored"
                )
                jobs.add_event(job, PARAMETERS_DROPPED, message, level="warning", data={"attempt": attempt.number})
            if repr(merged) != repr(before):  # 1 == True
                job.parameters, job.updated_at = merged.to_json(), self._now
                _take_names(jobs, job, ProgramNames.first_reported(before, merged))
                attempts.save_parameters(job.id, before.parameters, merged.parameters)
                jobs.save_values(job, reported_values(before), reported_values(merged))
        self._count("parameters", len(report.parameters))

    def media(self, report: MediaReport) -> int:
        """Store the media of a program; return their number. Reports from before a retry from scratch are ignored."""
        with self._database.write() as session:
            jobs = JobRepository(session, self._now)
            attempt, job = self._lock(jobs)
            _check_execution(attempt, report.execution)
            if report.execution < job.first_execution:
                return 0
            dropped = MediaRepository(session, self._database).store(job.pk, report)
            if dropped and jobs.last_event(job, MEDIA_DROPPED, since=None) is None:
                message = f"a job lists {MAX_JOB_MEDIA:,} media under {MAX_MEDIA_KEYS:,} names; more stay artifacts"
                jobs.add_event(job, MEDIA_DROPPED, message, level="warning", data={"attempt": attempt.number})
        self._count("media", len(report.items))
        return len(report.items) - dropped

    def record_rejected(self, count: int, first: str) -> None:
        """Add an event about spooled reports that could not be stored, unless the last event is the same."""
        with self._database.write() as session:
            jobs = JobRepository(session, self._now)
            attempt, job = self._lock(jobs)
            last = jobs.last_event(job, REPORTS_REJECTED, since=None)
            data = {"attempt": attempt.number, "count": count}
            if last is None or last.data != data:
                message = sanitize(f"{count} report(s) of the worker were invalid and were not stored; first: {first}")
                jobs.add_event(job, REPORTS_REJECTED, message, level="warning", data=data)

    def finish(self, record: FinishRecord) -> None:
        """Store the exit record of the attempt's latest execution; the reconciler evaluates it."""
        with self._database.write() as session:
            attempt, _ = JobRepository(session, self._now).lock_open_attempt(self._attempt_id)
            _check_execution(attempt, record.execution)
            if attempt.finish is None or record.execution >= attempt.finish["execution"]:
                attempt.finish = record.model_dump(mode="json")


def _without_estimate(progress: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the progress that a new attempt continues, without the pace, time left and phase of the attempt before."""
    continued = ("step", "total_steps", "epoch", "reported_at")
    return progress and {key: progress[key] for key in continued if key in progress}


def _note_stall(jobs: JobRepository, job: Job, event: WorkerEvent) -> None:
    """Change the condition of a running job that stands still, or goes on."""
    if event.type == STALL_SUSPECTED and job.condition is None:
        jobs.set_condition(job, Condition("standing_still", {"details": event.message[:_MAX_DETAILS]}))
    elif event.type == STALL_OVER and job.condition == "standing_still":
        jobs.set_status_message(job, "Running: the ranks make progress again.")


def _check_execution(attempt: Attempt, execution: int) -> None:
    if not attempt.execution <= execution <= attempt.execution + attempt.max_restarts:
        message = f"execution {execution} does not belong to this attempt"
        raise ConflictError(message, code="stale_execution", param="execution")


def _update_checkpoint(row: Checkpoint, report: CheckpointReport, sequence: int, policy: dict[str, Any] | None) -> None:
    row.execution = report.execution
    row.size_bytes = report.size_bytes
    row.digest = report.digest
    row.world_size = report.world_size
    # The checkpoint's manifest has all of them.
    row.metrics = shown_metrics(report.model_dump(mode="json")["metrics"], best_criterion(policy).metric)
    row.seconds = report.seconds
    row.created_at = report.time
    row.deleted_at, row.removing = None, False
    row.sequence = sequence


def _take_names(jobs: JobRepository, job: Job, names: ProgramNames) -> None:
    """Name a job as its program calls itself, where nobody has chosen a name or a project."""
    done = []
    is_program = task_kind(job.spec["task"]).runs_program
    if names.name and is_program and job.name in {UNTITLED, program_name(job.spec["argv"])}:
        done.append(f"renamed from {job.name!r} to {names.name!r}")
        job.name = names.name
    if names.project and job.project in {None, job.labels.get(GIT_REPOSITORY)}:
        # A program moves its job neither into a created project nor out of it: labels alone are for everybody.
        is_label = all(jobs.projects.quotas_of(name) is None for name in (job.project, names.project))
        if is_label and names.project != job.project:
            done.append(f"moved to project {names.project!r}")
            job.project = names.project
    if done:
        jobs.add_event(job, EDITED, f"{'; '.join(done)} by its program")
