"""What only an operator can know: what became of a job that was lost, or whose submission had no clear answer."""

from datetime import datetime

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, PermissionDeniedError
from service.db.engine import Database
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.jobs import JobResource, JobStatus, ResolveRequest, StatusReason

_EXIT = {"resubmit": "resubmitted", "give_up": "given_up"}
"""What an attempt that was resolved so ended as."""


def resolve(
    database: Database, principal: Principal, job_id: str, wanted: ResolveRequest, *, run_root: RunLayout, now: datetime
) -> JobResource:
    """Settle the job as the operator says. The same word again changes nothing.

    Raises:
        PermissionDeniedError: the caller is no administrator.
        ConflictError: the job is neither lost nor without a clear answer, or is still being asked about.
        InvalidRequestError: the scheduler has no ids that could be adopted.
    """
    if principal.role != "admin":
        raise PermissionDeniedError("only an administrator can say what became of a job")
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = jobs.get_for_update(jobs.get(job_id).pk)
        attempt = jobs.reload_attempt(job.attempt_id) if job.attempt_id else None
        if attempt is None or not _is_said_already(job, attempt, wanted):
            attempt = _open_question(job, attempt, now)
            _settle(jobs, job, attempt, wanted, principal, now)
        session.flush()
        return job_resource(job, attempt, RunLayout(run_root.root / job.id), now)


def _is_said_already(job: Job, attempt: Attempt, wanted: ResolveRequest) -> bool:
    if wanted.action == "adopt":
        return attempt.scheduler_id == wanted.scheduler_id and job.status in ("pending", "running", "cancelling")
    return attempt.exit_reason == _EXIT[wanted.action]


def _open_question(job: Job, attempt: Attempt | None, now: datetime) -> Attempt:
    """The attempt about which an operator may know more than the service. Raises ConflictError: there is none."""
    asked = attempt.last_submit_at if attempt is not None and attempt.scheduler_id is None else None
    unanswered = asked is not None and job.status in ("submitting", "cancelling")
    if attempt is None or not (job.status == "lost" or unanswered):
        raise ConflictError(
            f"job {job.id} is {job.status}; only a job that is lost, or whose submission had no clear answer, can be "
            "resolved",
            code="nothing_to_resolve",
        )
    if asked is not None and asked > now:
        raise ConflictError(
            f"the scheduler may still be asked until {asked:%H:%M:%S} UTC, and its answer would come after yours; "
            "resolve it then",
            code="still_asking",
        )
    return attempt


def _settle(
    jobs: JobRepository, job: Job, attempt: Attempt, wanted: ResolveRequest, principal: Principal, now: datetime
) -> None:
    data = {"action": wanted.action, "by": principal.name, "scheduler_id": wanted.scheduler_id, "status": job.status}
    jobs.add_event(job, "resolved", f"{principal.name} says: {_said(wanted)}", level="warning", data=data)
    if wanted.action == "adopt":
        _adopt(jobs, job, attempt, str(wanted.scheduler_id), now)
        return
    if wanted.action == "resubmit" and job.desired == "cancelled":
        raise ConflictError(f"job {job.id} is to be {job.desired}; give it up instead", code="not_wanted")
    attempt.ended_at, attempt.exit_reason = now, _EXIT[wanted.action]
    if wanted.action == "resubmit":
        jobs.transition(job, "queued", f"to be submitted again: {principal.name} says that nothing of it runs")
    else:
        _give_up(jobs, job, attempt, f"given up by {principal.name}")


def _said(wanted: ResolveRequest) -> str:
    words = {"resubmit": "nothing of it runs; submit it again", "give_up": "nothing of it runs; give it up"}
    return words.get(wanted.action, f"it is the scheduler's job {wanted.scheduler_id}")


def _adopt(jobs: JobRepository, job: Job, attempt: Attempt, scheduler_id: str, now: datetime) -> None:
    """Watch that job from now on. One of another name is not ours: the next tick finds ours absent."""
    if attempt.scheduler != "slurm":
        raise InvalidRequestError("only jobs of Slurm can be adopted; resubmit it or give it up", param="action")
    attempt.scheduler_id, attempt.submitted_at = scheduler_id, attempt.submitted_at or now
    if job.status != "cancelling":
        target: JobStatus = "running" if job.status == "lost" and attempt.claimed_at else "pending"
        jobs.transition(job, target, f"watched as the scheduler's job {scheduler_id}")


def _give_up(jobs: JobRepository, job: Job, attempt: Attempt, words: str) -> None:
    if job.desired == "cancelled":
        if job.status == "submitting":
            jobs.transition(job, "cancelling", "asked to stop")
        jobs.finish(job, "user_cancelled", words)
        return
    reason: StatusReason = "node_failure" if attempt.claimed_at else "rejected"
    jobs.finish(job, reason, words)
