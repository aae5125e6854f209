"""The requests of users about a job: cancel, pause, resume, retry, trace and delete.

Each request is one transaction that records the desired state or an event; the reconciler acts on it. A repeated
request changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, PermissionDeniedError
from service.db.engine import Database
from service.db.models import Attempt, Job, ModelVersion
from service.jobs.quota import UserQuotas, check_queue_quota
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from service.projects.rules import ProjectFacts, check_project_quota, may_change_job
from trainyard.contract.kinds.strategies import STRATEGIES
from trainyard.contract.kinds.tasks import LOOP_TASKS
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.jobs import TERMINAL, JobResource, ProfileRequest
from trainyard.contract.wire.reports import TraceRequest
from trainyard.contract.wire.worker_events import WORKER_PREFIX

_NAMED_VERSIONS = 3
"""Versions of registered models that an error names."""
RETRY = "retry_requested"
PROFILE_REQUESTED = "profile_requested"
PROFILE_ANSWERS = (f"{WORKER_PREFIX}profile_written", f"{WORKER_PREFIX}profile_dropped")

JobAction = Callable[[JobRepository, Job, str], None]
"""Changes a locked job; the last argument is the name of the user who requested it."""


@contextmanager
def locked_job(
    database: Database, principal: Principal, job_id: str, now: datetime, *, by_members: bool = False
) -> Iterator[tuple[JobRepository, Job]]:
    """Lock a job that the caller may change, for one transaction.

    Args:
        by_members: Whether members of the job's project may make this change, too.

    Raises:
        NotFoundError: the job does not exist.
        PermissionDeniedError: the caller may only read, or the job belongs to another user.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = jobs.get_for_update(jobs.get(job_id).pk)
        project = jobs.projects.facts(job.project, principal) if by_members else None
        require_change(principal, job, project)
        yield jobs, job


def require_change(principal: Principal, job: Job | None = None, project: ProjectFacts | None = None) -> None:
    """Check that the caller may make changes, or change a job.

    Args:
        project: The job's project, if its members may make the change, too.

    Raises:
        PermissionDeniedError: viewers may only read, and users may change only their own jobs.
    """
    if principal.role == "viewer":
        raise PermissionDeniedError("a viewer can only read")
    if job is None or (job.created_by == principal.name and project is None):
        return
    if principal.role != "admin" and not may_change_job(principal, job.created_by, project):
        raise PermissionDeniedError(f"job {job.id} belongs to {job.created_by}")


def apply_action(
    database: Database,
    principal: Principal,
    job_id: str,
    action: JobAction,
    *,
    runs: Path,
    now: datetime,
    check_spec: Callable[[TrainingSpec], None] | None = None,
) -> JobResource:
    """Apply an action to a job of the caller and return the job.

    Args:
        check_spec: Raises if the caller may not run the job's spec, for actions that start it again.

    Raises:
        PermissionDeniedError: the job belongs to another user.
        ConflictError: the job's status does not allow the action.
        InvalidRequestError: the action's arguments do not fit the job.
    """
    with locked_job(database, principal, job_id, now, by_members=True) as (jobs, job):
        if check_spec is not None:
            check_spec(parse_stored_spec(job.spec))
        action(jobs, job, principal.name)
        attempt = jobs.current_attempts([job]).get(job.id)
        return job_resource(job, attempt, RunLayout(runs / job.id), now)


def cancel(jobs: JobRepository, job: Job, by: str) -> None:
    """Record that the job is to end."""
    if job.status in ("succeeded", "failed"):
        raise ConflictError(f"job {job.id} has already {job.status}; it cannot be cancelled", code="job_finished")
    if job.desired != "cancelled" and job.status != "cancelled":
        job.desired = "cancelled"
        jobs.add_event(job, "cancel_requested", f"cancellation requested by {by}")


def pause(jobs: JobRepository, job: Job, by: str) -> None:
    """Record that the job is to pause: a running job writes a checkpoint first, then releases its allocation."""
    if job.status in TERMINAL:
        raise ConflictError(f"job {job.id} has already {_ended(job)}; it cannot be paused", code="job_finished")
    if job.desired == "cancelled":
        raise ConflictError(f"job {job.id} is being cancelled; it cannot be paused", code="job_cancelling")
    if job.desired != "paused":
        job.desired, job.pause_requested_at = "paused", jobs.now
        jobs.add_event(job, "pause_requested", f"pause requested by {by}")


def resume(jobs: JobRepository, job: Job, by: str) -> None:
    """Record that a paused job is to run again from its last checkpoint; a job that is still pausing pauses first."""
    if job.status in TERMINAL:
        hint = "" if job.status == "succeeded" else "; use `retry` to run it again"
        raise ConflictError(
            f"job {job.id} has already {_ended(job)}; only a paused job can be resumed{hint}", code="job_finished"
        )
    if job.desired == "cancelled":
        raise ConflictError(f"job {job.id} is being cancelled; it cannot be resumed", code="job_cancelling")
    if job.desired == "paused":
        job.desired = "run"
        if job.status == "running":
            job.pause_requested_at = None
        _pass_pause_step(job)
        jobs.add_event(job, "resume_requested", f"resumed by {by}")


def _pass_pause_step(job: Job) -> None:
    """Let a run that has paused at its step go on to the end."""
    if job.pause_at_step is not None and (job.last_checkpoint_step or 0) >= job.pause_at_step:
        job.pause_at_step = None


def _ended(job: Job) -> str:
    return "been cancelled" if job.status == "cancelled" else job.status


def retry(start: Literal["checkpoint", "scratch"], quotas: UserQuotas) -> JobAction:
    """Return the action that queues a failed or cancelled job again, from its last checkpoint or from scratch."""

    def action(jobs: JobRepository, job: Job, by: str) -> None:
        # A retry leaves the terminal statuses, so the last retry of a job that has not ended is the current retry.
        last = jobs.last_event(job, RETRY, since=None)
        if job.status not in TERMINAL and last is not None and last.data["from"] == start:
            return
        if job.status not in ("failed", "cancelled"):
            hint = "; fork it to continue from its last checkpoint" if job.status == "succeeded" else ""
            message = f"job {job.id} has status {job.status}; only a failed or cancelled job can be retried{hint}"
            raise ConflictError(message, code="not_retryable")
        _require_unregistered(job, jobs.registered_versions(job), "a retry would replace its files; fork it instead")
        check_queue_quota(quotas, job.created_by, jobs.count_queued(job.created_by))
        if (project := jobs.projects.quotas_of(job.project)) is not None:
            check_project_quota(project, job.gpus, jobs.projects.count_queued(project.name))
        if start == "scratch":
            _discard_results(jobs, job)
        job.desired, job.pause_requested_at = "run", jobs.now
        _pass_pause_step(job)
        job.retries_used = job.continuations_without_progress = 0
        job.failure = job.finished_at = job.archived_at = None
        step = job.last_checkpoint_step
        origin = "the beginning" if step is None else f"the checkpoint of step {step}"
        jobs.add_event(job, RETRY, f"retry from {origin} requested by {by}", data={"from": start})
        jobs.transition(job, "queued", f"Queued to run again from {origin}.")

    return action


def _discard_results(jobs: JobRepository, job: Job) -> None:
    """Ignore all earlier checkpoints and reports from now on; the next execution removes the files."""
    job.first_execution = job.next_execution
    job.last_checkpoint_step, job.progress, job.latest = None, None, {}
    jobs.mark_checkpoints_deleted(job)


def request_profile(request: ProfileRequest) -> JobAction:
    """Return the action that requests a trace of the next steps; the worker receives it with its heartbeat."""

    def action(jobs: JobRepository, job: Job, by: str) -> None:
        attempt = jobs.current_attempts([job]).get(job.id)
        if job.status != "running" or attempt is None:
            raise ConflictError(
                f"job {job.id} has status {job.status}; only a running job can be traced", code="not_running"
            )
        if job.spec["task"] not in LOOP_TASKS:
            message = f"task `{job.spec['task']}` does not use Trainyard's training loop and cannot be traced"
            raise ConflictError(message, code="not_traceable")
        last_rank = 0 if STRATEGIES[job.spec["strategy"]].has_one_process else job.spec["gpus"] - 1
        outside = [rank for rank in request.ranks if rank > last_rank]
        if outside:
            message = f"names rank {outside[0]}, but the ranks are 0 to {last_rank}"
            raise InvalidRequestError(message, param="ranks", code="unknown_rank")
        pending = pending_profile(jobs, job, attempt)
        if pending is None or (pending.steps, pending.ranks) != (request.steps, request.ranks):
            ranks = ", ".join(map(str, request.ranks))
            message = f"trace of {request.steps} step(s) on rank(s) {ranks} requested by {by}"
            data = request.model_dump(mode="json", include={"steps", "ranks"})
            jobs.add_event(job, PROFILE_REQUESTED, message, data=data)

    return action


def pending_profile(jobs: JobRepository, job: Job, attempt: Attempt) -> TraceRequest | None:
    """Return the last trace requested since the attempt was claimed, unless the worker has answered it."""
    request = jobs.last_event(job, PROFILE_REQUESTED, since=attempt.claimed_at)
    if request is None:
        return None
    for type_ in PROFILE_ANSWERS:
        answer = jobs.last_event(job, type_, since=request.created_at)
        number = answer.data.get("request") if answer is not None else None
        if isinstance(number, int) and number >= request.sequence:
            return None
    return TraceRequest(request=request.sequence, steps=request.data["steps"], ranks=tuple(request.data["ranks"]))


def delete_job(database: Database, principal: Principal, job_id: str, now: datetime) -> None:
    """Hide a job that has ended; the maintenance task removes its rows and its run directory.

    Raises:
        ConflictError: the job has not ended, or a version of a registered model is of this job.
    """
    with locked_job(database, principal, job_id, now) as (jobs, job):
        _require_ended(job)
        _require_unregistered(job, jobs.registered_versions(job))
        job.deletion_requested_at = now


def delete_checkpoints(database: Database, principal: Principal, job_id: str, now: datetime) -> None:
    """Delete all checkpoints of a job that has ended; its reports and its export stay.

    Raises:
        ConflictError: the job has not ended, or a version of a registered model is a checkpoint of the job.
    """
    with locked_job(database, principal, job_id, now) as (jobs, job):
        _require_ended(job)
        _require_unregistered(job, [version for version in jobs.registered_versions(job) if version.checkpoint_id])
        if count := jobs.mark_checkpoints_deleted(job, removing=True):
            job.last_checkpoint_step = None
            message = f"all {count} checkpoints deleted by {principal.name}"
            jobs.add_event(job, "checkpoints_deleted", message)


def _require_ended(job: Job) -> None:
    if job.status not in TERMINAL:
        raise ConflictError(f"job {job.id} has status {job.status}; cancel it first", code="job_not_finished")


def _require_unregistered(
    job: Job, versions: Sequence[ModelVersion], remedy: str = "delete those versions first"
) -> None:
    if versions:
        names = ", ".join(f"{version.model}@{version.number}" for version in versions[:_NAMED_VERSIONS])
        more = " and others" if len(versions) > _NAMED_VERSIONS else ""
        message = f"registered models need the files of job {job.id}: {names}{more}; {remedy}"
        raise ConflictError(message, code="job_registered")


def delete_checkpoint(database: Database, principal: Principal, job_id: str, checkpoint_id: str, now: datetime) -> None:
    """Delete a checkpoint.

    Raises:
        ConflictError: the job has not ended and would resume from this checkpoint, or a version of a registered model
            is this checkpoint.
    """
    with locked_job(database, principal, job_id, now) as (jobs, job):
        checkpoint = jobs.get_checkpoint(job, checkpoint_id)
        steps = jobs.checkpoint_steps(job)
        if job.status not in TERMINAL and checkpoint.step == steps[-1]:
            raise ConflictError(
                f"job {job.id} has status {job.status} and would resume from this checkpoint, its latest; "
                "delete it after the job has ended",
                code="checkpoint_in_use",
            )
        versions = jobs.registered_versions(job)
        _require_unregistered(job, [version for version in versions if version.checkpoint_id == checkpoint.id])
        checkpoint.deleted_at, checkpoint.removing = now, True
        if checkpoint.step == job.last_checkpoint_step:
            job.last_checkpoint_step = max((step for step in steps if step != checkpoint.step), default=None)
        message = f"checkpoint of step {checkpoint.step} deleted by {principal.name}"
        jobs.add_event(job, "checkpoint_deleted", message, data={"step": checkpoint.step, "id": checkpoint.id})
