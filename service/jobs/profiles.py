"""A trace asked of a running job. The request is an event of the job; the worker hears of it by its heartbeat."""

from datetime import datetime

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError
from service.db.engine import Database
from service.db.models import Attempt, Event, Job
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from service.jobs.service import require_change
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import LOOP_TASKS
from trainyard.contract.wire.jobs import JobResource, ProfileRequest
from trainyard.contract.wire.reports import TraceRequest

REQUESTED = "profile_requested"
ANSWERS = ("profile_written", "profile_dropped")


def ask(
    database: Database,
    principal: Principal,
    job_id: str,
    wanted: ProfileRequest,
    *,
    run_root: RunLayout,
    now: datetime,
) -> JobResource:
    """Record that a trace of the next steps is wanted. The same wish, asked again before it is met, changes nothing.

    Raises:
        ConflictError: the job does not run, or has no steps to trace.
        InvalidRequestError: it has no such rank.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = jobs.get_for_update(jobs.get(job_id).pk)
        require_change(principal, job)
        attempt = jobs.current_attempts([job]).get(job.id)
        if job.status != "running" or attempt is None:
            raise ConflictError(f"job {job.id} is {job.status}; only a running job can be traced", code="not_running")
        if job.spec["task"] not in LOOP_TASKS:
            raise ConflictError(f"task `{job.spec['task']}` has no steps of ours to trace", code="not_traceable")
        last = 0 if job.spec["strategy"] == "dp" else job.spec["gpus"] - 1
        outside = [rank for rank in wanted.ranks if rank > last]
        if outside:
            message = f"names rank {outside[0]}, but the ranks are 0 to {last}"
            raise InvalidRequestError(message, param="ranks", code="unknown_rank")
        pending = pending_request(jobs, job, attempt)
        if pending is None or (pending.steps, pending.ranks) != (wanted.steps, wanted.ranks):
            ranks = ", ".join(map(str, wanted.ranks))
            message = f"a trace of {wanted.steps} step(s) on rank(s) {ranks} asked for by {principal.name}"
            jobs.add_event(job, REQUESTED, message, data=wanted.model_dump(mode="json", include={"steps", "ranks"}))
        return job_resource(job, attempt, RunLayout(run_root.root / job.id), now)


def pending_request(jobs: JobRepository, job: Job, attempt: Attempt) -> TraceRequest | None:
    """The last trace asked for since the attempt was claimed, unless it was answered."""
    asked = jobs.last_event(job, REQUESTED, since=attempt.claimed_at)
    if asked is None:
        return None
    answers = (jobs.last_event(job, kind, since=asked.created_at) for kind in ANSWERS)
    if any(answer is not None and _number(answer) >= asked.sequence for answer in answers):
        return None
    return TraceRequest(request=asked.sequence, steps=asked.data["steps"], ranks=tuple(asked.data["ranks"]))


def _number(answer: Event) -> int:
    number = answer.data.get("request")
    return number if isinstance(number, int) else 0
