"""Pausing, resuming and trying again: each records intent in one transaction, and asking again changes nothing."""

from collections.abc import Callable
from datetime import datetime
from typing import Literal

from service.auth.principals import Principal
from service.core.errors import ConflictError
from service.db.engine import Database
from service.db.models import Job
from service.jobs.quota import UserQuotas, check_queue_quota
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from service.jobs.service import require_change
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.jobs import TERMINAL, JobResource

PAUSE, RESUME, RETRY = "pause_requested", "resume_requested", "retry_requested"

Change = Callable[[JobRepository, Job, str], None]
"""What is asked of a locked job, and by whom."""


def steer(
    database: Database, principal: Principal, job_id: str, change: Change, *, run_root: RunLayout, now: datetime
) -> JobResource:
    """Apply one change to a job of the caller's.

    Raises:
        PermissionDeniedError: it belongs to another.
        ConflictError: its status forbids it.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = jobs.get_for_update(jobs.get(job_id).pk)
        require_change(principal, job)
        change(jobs, job, principal.name)
        session.flush()
        attempt = jobs.current_attempts([job]).get(job.id)
        return job_resource(job, attempt, RunLayout(run_root.root / job.id), now)


def pause(jobs: JobRepository, job: Job, by: str) -> None:
    """What waits is taken back; what runs saves a checkpoint and leaves, and its allocation is given back."""
    if job.status in TERMINAL:
        raise ConflictError(f"job {job.id} has {job.status} already; there is nothing to pause", code="job_finished")
    if job.desired == "cancelled":
        raise ConflictError(f"job {job.id} is being cancelled; it cannot be paused", code="job_cancelling")
    if job.desired != "paused":
        job.desired, job.pause_requested_at = "paused", jobs.now
        jobs.add_event(job, PAUSE, f"a pause asked for by {by}")


def resume(jobs: JobRepository, job: Job, by: str) -> None:
    """A paused job goes on from its last checkpoint; one that is still pausing does so once it has left."""
    if job.status in TERMINAL:
        raise ConflictError(
            f"job {job.id} has {job.status} already; only a paused job can be resumed"
            + ("" if job.status == "succeeded" else ", and `retry` runs this one again"),
            code="job_finished",
        )
    if job.desired == "cancelled":
        raise ConflictError(f"job {job.id} is being cancelled; it cannot be resumed", code="job_cancelling")
    if job.desired == "paused":
        job.desired = "run"
        jobs.add_event(job, RESUME, f"resumed by {by}")


def retry(start: Literal["checkpoint", "scratch"], limits: UserQuotas) -> Change:
    """Run a failed or cancelled job again, from its last checkpoint or from its beginning."""

    def change(jobs: JobRepository, job: Job, by: str) -> None:
        if _is_asked_already(jobs, job, start):
            return
        if job.status not in ("failed", "cancelled"):
            way = "; a fork of it goes on from its last checkpoint" if job.status == "succeeded" else ""
            message = f"job {job.id} is {job.status}; only a job that failed or was cancelled can be tried again{way}"
            raise ConflictError(message, code="not_retryable")
        check_queue_quota(limits, job.created_by, jobs.count_queued(job.created_by))
        if start == "scratch":
            _forget(jobs, job)
        job.desired, job.pause_requested_at = "run", None
        job.retries_used = job.continuations_without_progress = 0
        job.failure = job.finished_at = None
        step = job.last_checkpoint_step
        where = "its beginning" if step is None else f"the checkpoint of step {step}"
        jobs.add_event(job, RETRY, f"another try from {where} asked for by {by}", data={"from": start})
        jobs.transition(job, "queued", f"to be tried again from {where}")

    return change


def _is_asked_already(jobs: JobRepository, job: Job, start: str) -> bool:
    """A retry leaves the terminal statuses, so that the last one of a job that is not over is the current one."""
    asked = jobs.last_event(job, RETRY, since=None)
    return job.status not in TERMINAL and asked is not None and asked.data["from"] == start


def _forget(jobs: JobRepository, job: Job) -> None:
    """Nothing that was saved or reported counts any more; the next execution removes the files."""
    job.first_execution = job.next_execution
    job.last_checkpoint_step, job.progress, job.latest = None, None, {}
    jobs.mark_checkpoints_deleted(job)
