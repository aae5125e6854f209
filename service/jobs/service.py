"""What people can ask of a job. Each call is one transaction that records intent; the reconciler acts on it."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, InvalidSpecError, PermissionDeniedError
from service.db.engine import Database
from service.db.models import Job
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from service.scheduler.launch_plan import forbidden_variables
from trainyard.contract.layout import RunLayout
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.jobs import JobResource


def accept_spec(document: Any, site_of: Callable[[TrainingSpec], Site]) -> TrainingSpec:
    """A document as a resolved spec, on the site that `site_of` says.

    Raises:
        InvalidSpecError: with every problem found.
    """
    if not isinstance(document, dict):
        raise InvalidRequestError("a spec is a mapping of fields", code="invalid_spec")
    try:
        parsed = parse_spec(document)
        spec = resolve(parsed, site_of(parsed))
    except SpecError as error:
        raise InvalidSpecError(error.problems) from None
    if problems := forbidden_variables(spec):
        raise InvalidSpecError(problems)
    return spec


def cancel(database: Database, principal: Principal, job_id: str, *, run_root: RunLayout, now: datetime) -> JobResource:
    """Record that the job is to end. Asking again changes nothing.

    Raises:
        ConflictError: it is over already.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = jobs.get_for_update(jobs.get(job_id).pk)
        require_change(principal, job)
        if job.status in ("succeeded", "failed"):
            raise ConflictError(
                f"job {job.id} has {job.status} already; there is nothing to cancel", code="job_finished"
            )
        if job.desired != "cancelled" and job.status != "cancelled":
            job.desired = "cancelled"
            jobs.add_event(job, "cancel_requested", f"cancellation asked for by {principal.name}")
        attempt = jobs.current_attempts([job]).get(job.id)
        return job_resource(job, attempt, RunLayout(run_root.root / job.id), now)


def require_change(principal: Principal, job: Job | None = None) -> None:
    """Raises PermissionDeniedError: viewers only look, and a user changes only their own jobs."""
    if principal.role == "viewer":
        raise PermissionDeniedError("a viewer's token can only read")
    if principal.role == "user" and job is not None and job.created_by != principal.name:
        raise PermissionDeniedError(f"job {job.id} belongs to {job.created_by}")
