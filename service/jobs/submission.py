"""Submission: an accepted spec becomes a durable job, once for each idempotency key."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.audit.log import add_audit_detail, set_audit_target
from service.auth.principals import Principal
from service.auth.unix_users import job_account
from service.core.errors import ConflictError, InvalidRequestError
from service.core.ids import new_job_id
from service.core.settings import RunAs
from service.db.engine import Database
from service.db.models import Job
from service.jobs.dependencies import DependencyRepository
from service.jobs.forks import find_origin, link_origin
from service.jobs.idempotency import IdempotencyRepository
from service.jobs.quota import NO_QUOTAS, UserQuotas, check_disk_quota, check_gpu_quota, check_queue_quota
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from service.jobs.service import require_change
from service.projects.repository import ProjectRepository
from service.projects.rules import ProjectFacts, check_project_quota, require_submit
from service.run_files.files import RunFiles
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.launch import Origin

MAX_IDEMPOTENCY_KEY = 255
MSG_QUEUED = "Waiting to be submitted to the scheduler."
PREFLIGHT_OVERRIDDEN = "preflight_overridden"
"""The event of a job that was submitted with `force`; the preflight skips its memory check."""


@dataclass(frozen=True)
class SubmissionRequest:
    """One request to submit a job."""

    spec: TrainingSpec
    idempotency_key: str | None = None
    unresolved: TrainingSpec | None = None
    """The spec before it was resolved for the current cluster, if that differs: the key stands for this spec."""
    force: bool = False
    """Skip the check that the job fits the GPUs' memory."""
    warnings: tuple[str, ...] = ()
    """Warnings about the spec, recorded as events of type `spec_warning`."""
    add_rows: Callable[[Session, Job], None] | None = None
    """Adds rows about the job in the transaction that stores it."""

    def digest(self) -> str:
        """Return the SHA-256 of the request that the idempotency key stands for."""
        document = dump_spec(self.unresolved or self.spec) | ({"force": True} if self.force else {})
        return request_digest(document)


@dataclass(frozen=True)
class SubmissionResult:
    """The response to a submission."""

    response: dict[str, Any]
    """The resource as JSON."""
    replayed: bool
    """Whether this is the stored response of an earlier request with the same key."""


def submit(
    database: Database,
    principal: Principal,
    request: SubmissionRequest,
    *,
    run_files: RunFiles,
    now: datetime,
    quotas: UserQuotas = NO_QUOTAS,
    run_as: RunAs = "service",
) -> SubmissionResult:
    """Make the job durable, once for each idempotency key.

    Raises:
        PermissionDeniedError: jobs run as their owners, and the user has no Unix account; or the user is not a member
            of the project.
        ConflictError: the key was used for another request, or the checkpoint to start from does not exist.
        InvalidRequestError: `resume_from` names an unknown job or checkpoint.
        QuotaExceededError: the user's jobs hold too much disk space.
        InvalidSpecError: the job alone exceeds the user's GPU quota, or waits for a job that does not exist.
    """
    require_change(principal)
    check_gpu_quota(quotas, principal.role, request.spec)
    job_id = new_job_id(now)
    run = RunLayout(run_files.runs / job_id)
    # A replayed request does not look up its checkpoint, which may be gone or no longer the newest.
    replays = _has_response(database, principal, request.idempotency_key, now)
    spec, origin = request.spec, None if replays else find_origin(database, request.spec, now)
    result, uid = None, None
    if origin is not None:
        with database.read() as session:
            uid = job_account(session, principal.name, run_as)
    try:
        if origin is not None:
            link_origin(run_files, origin, job_id, uid)
            spec = spec.model_copy(update={"resume_from": f"{origin.job_id}:{origin.step}"})
        job = new_job(spec, principal, now, job_id=job_id, origin=origin)
        result = _store(database, principal, job, request, run, now, quotas, run_as)
    finally:
        if origin is not None and (result is None or result.replayed):
            run_files.remove_links(uid, job_id)
    return result


def _has_response(database: Database, principal: Principal, key: str | None, now: datetime) -> bool:
    if key is None:
        return False
    with database.read() as session:
        return IdempotencyRepository(session, now).has_response(principal.id, key)


def new_job(
    spec: TrainingSpec, principal: Principal, now: datetime, *, job_id: str | None = None, origin: Origin | None = None
) -> Job:
    """Return a queued job that is not yet stored."""
    return Job(
        id=job_id or new_job_id(now),
        name=spec.name,
        project=spec.project,
        status="queued",
        status_message=MSG_QUEUED,
        spec=dump_spec(spec),
        labels=dict(spec.metadata),
        created_by=principal.name,
        submitter_role=principal.role or "user",
        gpus=spec.gpus,
        created_at=now,
        updated_at=now,
        latest={},
        origin=origin.model_dump(mode="json") if origin else None,
    )


def _store(
    database: Database,
    principal: Principal,
    job: Job,
    request: SubmissionRequest,
    run: RunLayout,
    now: datetime,
    quotas: UserQuotas,
    run_as: RunAs,
) -> SubmissionResult:
    key = request.idempotency_key
    with database.write() as session:
        jobs, keys = JobRepository(session, now), IdempotencyRepository(session, now)
        project = admit_to_project(session, principal, request.spec)
        if key is not None and (stored := claim_key(database, keys, principal, key, request.digest())):
            return stored
        check_project_quota(project, job.gpus, 0 if project is None else jobs.projects.count_queued(project.name))
        if project is not None:
            job.project = project.name
            add_audit_detail(project=project.name)
        check_user_quotas(session, principal, quotas, now)
        DependencyRepository(session).require(request.spec.after)
        job.unix_uid = job_account(session, principal.name, run_as)
        jobs.add(job)
        set_audit_target(job.id)
        if job.origin is not None:
            jobs.add_event(job, "forked", _describe_fork(Origin.model_validate(job.origin)), data=job.origin)
        if request.force:
            record_override(jobs, job)
        record_warnings(jobs, job, request.warnings)
        if request.add_rows is not None:
            request.add_rows(session, job)
        if key is not None:
            keys.store_response(principal.id, key, _response(job, run, now))
    # Built again outside of the transaction, so that other writers do not wait for it.
    return SubmissionResult(_response(job, run, now), replayed=False)


def admit_to_project(session: Session, principal: Principal, spec: TrainingSpec) -> ProjectFacts | None:
    """Return the created project into which a user submits; None: the spec names none, or a label.

    Raises:
        PermissionDeniedError: the user is not a member of the project.
    """
    project = ProjectRepository(session).facts(spec.project, principal)
    require_submit(principal, project)
    return project


def check_user_quotas(
    session: Session, principal: Principal, quotas: UserQuotas, now: datetime, *, count: int = 1
) -> None:
    """Check that a user may submit `count` more jobs.

    Raises:
        QuotaExceededError: the user's jobs hold too much disk space.
        ConflictError: the user has too many queued jobs.
    """
    jobs = JobRepository(session, now)
    if quotas.disk_bytes is not None:
        check_disk_quota(quotas, principal.name, jobs.disk_bytes(principal.name))
    check_queue_quota(quotas, principal.name, jobs.count_queued(principal.name), count)


def record_override(jobs: JobRepository, job: Job) -> None:
    """Record that the job was submitted with `force`."""
    message = f"submitted with `force` by {job.created_by}: runs even if it cannot fit the GPUs' memory"
    jobs.add_event(job, PREFLIGHT_OVERRIDDEN, message, level="warning")


def record_warnings(jobs: JobRepository, job: Job, warnings: Iterable[str]) -> None:
    """Record warnings about the job's spec as events."""
    for warning in warnings:
        jobs.add_event(job, "spec_warning", warning, level="warning")


def _describe_fork(origin: Origin) -> str:
    start = f"starts from the checkpoint of step {origin.step} of job {origin.job_id}"
    if not origin.continues:
        return f"{start}, with the weights only"
    if origin.differs:
        return f"{start}, as a continuation with other values of {', '.join(origin.differs)}"
    if origin.layout_differs:
        fields = ", ".join(origin.layout_differs)
        return f"{start}, as a continuation that is equal to rounding, not to the last digit; changed: {fields}"
    return f"{start}, as an exact continuation"


def claim_key(
    database: Database, keys: IdempotencyRepository, principal: Principal, key: str, digest: str
) -> SubmissionResult | None:
    """Claim an idempotency key. Return the stored response of an earlier request with it, or None if it was free.

    Raises:
        InvalidRequestError: the key is malformed.
        ConflictError: the earlier request was different.
    """
    if not key or len(key) > MAX_IDEMPOTENCY_KEY or not key.isascii() or not key.isprintable():
        message = f"must be 1 to {MAX_IDEMPOTENCY_KEY} printable ASCII characters"
        raise InvalidRequestError(message, param="Idempotency-Key")
    earlier = keys.claim(database, principal.id, key, digest)
    if earlier is None:
        return None
    if earlier.digest != digest:
        raise ConflictError(
            "this Idempotency-Key was used for another request; use a new key",
            code="idempotency_key_reused",
            param="Idempotency-Key",
        )
    return SubmissionResult(earlier.response, replayed=True)


def request_digest(document: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON document with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _response(job: Job, run: RunLayout, now: datetime) -> dict[str, Any]:
    return job_resource(job, None, run, now).model_dump(mode="json")
