"""Deletion of jobs and checkpoints. What is asked here nobody sees any more; the housekeeper removes it."""

from datetime import datetime

from service.auth.principals import Principal
from service.core.errors import ConflictError
from service.db.engine import Database
from service.db.models import Job
from service.jobs.repository import JobRepository
from service.jobs.service import require_change
from trainyard.contract.wire.jobs import TERMINAL


def delete_job(database: Database, principal: Principal, job_id: str, now: datetime) -> None:
    """A job that is over, with all that it has reported and its run directory.

    Raises:
        ConflictError: it is not over.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = _locked(jobs, principal, job_id)
        _require_over(job)
        job.deletion_requested_at = now


def delete_checkpoints(database: Database, principal: Principal, job_id: str, now: datetime) -> None:
    """All checkpoints of a job that is over; what it has reported, and its export, stay.

    Raises:
        ConflictError: it is not over.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = _locked(jobs, principal, job_id)
        _require_over(job)
        kept = jobs.list_checkpoints(job)
        for checkpoint in kept:
            checkpoint.deleted_at, checkpoint.removing = now, True
        if kept:
            job.last_checkpoint_step = None
            jobs.add_event(job, "checkpoints_deleted", f"all {len(kept)} checkpoints deleted by {principal.name}")


def delete_checkpoint(database: Database, principal: Principal, job_id: str, checkpoint_id: str, now: datetime) -> None:
    """One checkpoint.

    Raises:
        ConflictError: it is the one from which a job that is not over would go on.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = _locked(jobs, principal, job_id)
        checkpoint = jobs.get_checkpoint(job, checkpoint_id)
        kept = [other.step for other in jobs.list_checkpoints(job)]
        if job.status not in TERMINAL and checkpoint.step == kept[-1]:
            raise ConflictError(
                f"job {job.id} is {job.status} and would go on from this checkpoint, its newest; "
                "delete it when the job is over, or another one now",
                code="checkpoint_in_use",
            )
        checkpoint.deleted_at, checkpoint.removing = now, True
        if checkpoint.step == job.last_checkpoint_step:
            job.last_checkpoint_step = max((step for step in kept if step != checkpoint.step), default=None)
        words = f"the checkpoint of step {checkpoint.step} deleted by {principal.name}"
        jobs.add_event(job, "checkpoint_deleted", words, data={"step": checkpoint.step, "id": checkpoint.id})


def _locked(jobs: JobRepository, principal: Principal, job_id: str) -> Job:
    job = jobs.get_for_update(jobs.get(job_id).pk)
    require_change(principal, job)
    return job


def _require_over(job: Job) -> None:
    if job.status not in TERMINAL:
        raise ConflictError(f"job {job.id} is {job.status}; cancel it first", code="job_not_finished")
