"""Resolution by an operator of jobs that are lost, or whose submission the scheduler never confirmed."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, NotFoundError, PermissionDeniedError
from service.db.engine import Database
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.jobs.service import JobAction, apply_action
from service.scheduler.backends import names_entries
from trainyard.contract.wire.jobs import JobStatus, ResolutionResource, ResolveRequest, StatusReason

_EXIT_REASON = {"resubmit": "resubmitted", "give_up": "given_up"}


def resolve(principal: Principal, request: ResolveRequest) -> JobAction:
    """Return the action that settles a job as the operator requests. Repeating the request changes nothing.

    The action raises ConflictError if the job is neither lost nor unconfirmed, or if its submission can still be
    confirmed, and InvalidRequestError if the job's scheduler has no ids to adopt.

    Raises:
        PermissionDeniedError: the caller is not an administrator.
    """
    if principal.role != "admin":
        raise PermissionDeniedError("only an administrator can resolve a job")

    def action(jobs: JobRepository, job: Job, by: str) -> None:
        attempt = jobs.reload_attempt(job.attempt_id) if job.attempt_id else None
        if attempt is None or not _is_resolved(job, attempt, request):
            _resolve(jobs, job, _require_unresolved(jobs, job, attempt), request, by)

    return action


def resolve_each(
    database: Database,
    principal: Principal,
    job_ids: Sequence[str],
    request: ResolveRequest,
    *,
    runs: Path,
    now: datetime,
) -> list[ResolutionResource]:
    """Resolve each job in a transaction of its own, and return the results.

    Raises:
        PermissionDeniedError: the caller is not an administrator.
    """
    action = resolve(principal, request)
    results = []
    for job_id in job_ids:
        try:
            job = apply_action(database, principal, job_id, action, runs=runs, now=now)
        except (ConflictError, NotFoundError) as error:
            results.append(ResolutionResource(job_id=job_id, resolved=False, message=error.message))
        else:
            results.append(
                ResolutionResource(job_id=job_id, resolved=True, status=job.status, message=job.status_message)
            )
    return results


def _is_resolved(job: Job, attempt: Attempt, request: ResolveRequest) -> bool:
    """Whether an earlier request has settled the job in the same way."""
    if request.action == "adopt":
        return attempt.scheduler_id == request.scheduler_id and job.status in ("pending", "running", "cancelling")
    return attempt.exit_reason == _EXIT_REASON[request.action]


def _require_unresolved(jobs: JobRepository, job: Job, attempt: Attempt | None) -> Attempt:
    """Return the attempt to resolve. Raises ConflictError: there is none, or its submission can still be confirmed."""
    pending = attempt if attempt is not None and attempt.scheduler_id is None else None
    confirmable_until = pending.last_submit_at if pending is not None else None
    unconfirmed = confirmable_until is not None and job.status in ("submitting", "cancelling")
    if attempt is None or not (job.status == "lost" or unconfirmed):
        raise ConflictError(
            f"job {job.id} has status {job.status}; only a lost job, or one with an unconfirmed submission, can be "
            "resolved",
            code="nothing_to_resolve",
        )
    if confirmable_until is not None and confirmable_until > jobs.now:
        raise ConflictError(
            f"the scheduler can still confirm the submission until {confirmable_until:%H:%M:%S} UTC; resolve the job "
            "after that",
            code="submission_in_flight",
        )
    return attempt


def _resolve(jobs: JobRepository, job: Job, attempt: Attempt, request: ResolveRequest, by: str) -> None:
    data = {"action": request.action, "by": by, "scheduler_id": request.scheduler_id, "status": job.status}
    decision = {"resubmit": "nothing is running, resubmit", "give_up": "nothing is running, give up"}.get(
        request.action, f"it is scheduler job {request.scheduler_id}"
    )
    jobs.add_event(job, "resolved", f"resolved by {by}: {decision}", level="warning", data=data)
    if request.action == "adopt":
        _adopt(jobs, job, attempt, str(request.scheduler_id))
        return
    if request.action == "resubmit" and job.desired == "cancelled":
        raise ConflictError(f"job {job.id} is being cancelled; use `give_up` instead", code="job_cancelling")
    attempt.ended_at, attempt.exit_reason = jobs.now, _EXIT_REASON[request.action]
    if attempt.claimed_at is not None or job.open_spool is None:
        # Its processes may live on where neither the scheduler nor the service hears of them: a next attempt waits.
        job.open_spool = attempt.number
    if request.action == "resubmit":
        jobs.transition(job, "queued", f"Queued to be resubmitted, as resolved by {by}.")
    else:
        _give_up(jobs, job, attempt, f"Given up by {by}.")


def _adopt(jobs: JobRepository, job: Job, attempt: Attempt, scheduler_id: str) -> None:
    """Watch this scheduler job from now on. If its name is not the attempt's tag, the next tick reports it absent."""
    if not names_entries(attempt.scheduler):
        raise InvalidRequestError("only Slurm jobs can be adopted; use `resubmit` or `give_up`", param="action")
    attempt.scheduler_id, attempt.submitted_at = scheduler_id, attempt.submitted_at or jobs.now
    if job.status != "cancelling":
        target: JobStatus = "running" if job.status == "lost" and attempt.claimed_at else "pending"
        jobs.transition(job, target, f"Adopted as scheduler job {scheduler_id}.")


def _give_up(jobs: JobRepository, job: Job, attempt: Attempt, message: str) -> None:
    if job.desired == "cancelled":
        if job.status == "submitting":
            jobs.transition(job, "cancelling", "Cancellation requested.")
        jobs.finish(job, "user_cancelled", message)
        return
    reason: StatusReason = "node_failure" if attempt.claimed_at else "rejected"
    jobs.finish(job, reason, message)
