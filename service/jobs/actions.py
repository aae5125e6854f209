"""What people can ask of a job. Each call is one transaction that records intent; the reconciler acts on it."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.access.actions import Principal
from service.access.trail import about
from service.db.engine import Database
from service.db.models import Job
from service.errors import (
    ConflictError,
    InvalidRequestError,
    InvalidSpecError,
    PermissionDeniedError,
    QuotaExceededError,
)
from service.housekeeping.repository import HousekeepingRepository
from service.ids import new_job_id
from service.jobs.forks import find_origin, link_origin, unlink_origin
from service.jobs.limits import NO_LIMITS, Limits, require_queue_room, require_share
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from service.scheduler.launch_plan import forbidden_variables
from trainyard.contract.launch import Origin
from trainyard.contract.layout import RunLayout
from trainyard.contract.problems import SpecError
from trainyard.contract.resolve import Site, resolve
from trainyard.contract.resources import JobResource
from trainyard.contract.spec import TrainingSpec, dump_spec, parse_spec

MAX_KEY = 255
FORCED = "preflight_overridden"
"""The event of a job that is submitted however large it is."""


@dataclass(frozen=True)
class Accepted:
    """The answer to a submission; `replayed` when it was given before."""

    job: dict[str, Any]
    replayed: bool


def accept_spec(document: Any, site: Site) -> TrainingSpec:
    """A document as a resolved spec.

    Raises:
        InvalidSpecError: with every problem found.
    """
    if not isinstance(document, dict):
        raise InvalidRequestError("a spec is a mapping of fields", code="invalid_spec")
    try:
        spec = resolve(parse_spec(document), site)
    except SpecError as error:
        raise InvalidSpecError(error.problems) from None
    if problems := forbidden_variables(spec):
        raise InvalidSpecError(problems)
    return spec


def submit(
    database: Database,
    principal: Principal,
    spec: TrainingSpec,
    *,
    run_root: RunLayout,
    idempotency_key: str | None,
    plain: TrainingSpec | None = None,
    force: bool = False,
    now: datetime,
    quota: int | None = None,
    limits: Limits = NO_LIMITS,
) -> Accepted:
    """Make the job durable, once for each idempotency key.

    Args:
        plain: The spec as an idempotency key stands for it, where that is not the one to store.
        force: What is beyond doubt too large for the GPUs is submitted all the same.

    Raises:
        ConflictError: the key was used for another spec, or the checkpoint to start from is not there.
        InvalidRequestError: `resume_from` names what there is not.
        QuotaExceededError: the person's jobs hold too much on disk.
        InvalidSpecError: it asks for more GPUs than one person's jobs may ever have.
    """
    require_change(principal)
    require_share(limits, principal.role, spec)
    job_id = new_job_id(now)
    run = RunLayout(run_root.root / job_id)
    # Before the checkpoint is looked up: a newer one may be there when the request is repeated.
    asked = dump_spec(plain or spec) | ({"force": True} if force else {})
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    origin = None if _is_repeated(database, principal, idempotency_key, now) else find_origin(database, spec, now)
    accepted = None
    try:
        if origin is not None:
            link_origin(RunLayout(run_root.root / origin.job_id).checkpoint(origin.step), run.origin(origin.step))
            spec = spec.model_copy(update={"resume_from": f"{origin.job_id}:{origin.step}"})
        job = new_job(spec, principal, now, job_id=job_id, origin=origin)
        accepted = _store(
            database,
            principal,
            job,
            digest,
            run_root=run_root,
            idempotency_key=idempotency_key,
            force=force,
            now=now,
            quota=quota,
            limits=limits,
        )
    finally:
        if origin is not None and (accepted is None or accepted.replayed):
            unlink_origin(run)
    return accepted


def _is_repeated(database: Database, principal: Principal, key: str | None, now: datetime) -> bool:
    """Then the answer is known, and what it was made from may be gone by now."""
    if key is None:
        return False
    with database.read() as session:
        return JobRepository(session, now).answered(principal.id, key)


def _require_room(used: int, quota: int, principal: Principal) -> None:
    if used >= quota:
        raise QuotaExceededError(
            f"the jobs of {principal.name} hold {used / 1e9:.2f} GB on disk, and {quota / 1e9:.2f} GB is what one "
            "person's may; delete some (`trainyard delete JOB`, or `--checkpoints` alone)"
        )


def require_room_for(
    session: Session, principal: Principal, *, limits: Limits, quota: int | None, now: datetime, count: int = 1
) -> None:
    """Whether a person may have so many jobs more.

    Raises:
        QuotaExceededError: theirs hold too much on disk.
        ConflictError: too many of theirs wait already.
    """
    if quota is not None:
        _require_room(HousekeepingRepository(session).usage_of(principal.name), quota, principal)
    require_queue_room(limits, principal.name, JobRepository(session, now).count_queued(principal.name) + count - 1)


def new_job(
    spec: TrainingSpec, principal: Principal, now: datetime, *, job_id: str | None = None, origin: Origin | None = None
) -> Job:
    """A queued job that is in no database yet."""
    return Job(
        id=job_id or new_job_id(now),
        name=spec.name,
        status="queued",
        status_message="accepted; about to be handed to the scheduler",
        spec=dump_spec(spec),
        labels=dict(spec.metadata),
        created_by=principal.name,
        created_as=principal.role or "user",
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
    digest: str,
    *,
    run_root: RunLayout,
    idempotency_key: str | None,
    force: bool,
    now: datetime,
    quota: int | None,
    limits: Limits,
) -> Accepted:
    with database.write() as session:
        jobs = JobRepository(session, now)
        if idempotency_key is not None and (before := replay(database, jobs, principal, idempotency_key, digest)):
            return before
        require_room_for(session, principal, limits=limits, quota=quota, now=now)
        jobs.add(job)
        about(job.id)
        if job.origin is not None:
            jobs.event(job, "forked", _fork_words(Origin.model_validate(job.origin)), data=job.origin)
        if force:
            said = f"{principal.name} has it submitted even if it cannot fit the GPUs' memory"
            jobs.event(job, FORCED, said, level="warning")
        if idempotency_key is not None:
            jobs.remember(principal.id, idempotency_key, _answer(job, run_root, now))
    # Once more where it was remembered: other writers do not wait for it.
    return Accepted(job=_answer(job, run_root, now), replayed=False)


def _fork_words(origin: Origin) -> str:
    start = f"starts from the checkpoint of step {origin.step} of job {origin.job_id}"
    if origin.continues:
        return f"{start}, as its exact continuation"
    return f"{start}, with its weights alone: {', '.join(origin.differs)} differ(s)"


def replay(database: Database, jobs: JobRepository, principal: Principal, key: str, digest: str) -> Accepted | None:
    """The answer that this key has had, or None now that it is taken.

    Raises:
        ConflictError: it was another question.
    """
    if not key or len(key) > MAX_KEY or not key.isascii() or not key.isprintable():
        raise InvalidRequestError(f"must be 1 to {MAX_KEY} printable ASCII characters", param="Idempotency-Key")
    known = jobs.reserve(database, principal.id, key, digest)
    if known is None:
        return None
    if known.digest != digest:
        raise ConflictError(
            "this Idempotency-Key was used with another request; take a new key for a new one",
            code="idempotency_key_reused",
            param="Idempotency-Key",
        )
    return Accepted(job=known.response, replayed=True)


def cancel(database: Database, principal: Principal, job_id: str, *, run_root: RunLayout, now: datetime) -> JobResource:
    """Record that the job is to end. Asking again changes nothing.

    Raises:
        ConflictError: it is over already.
    """
    with database.write() as session:
        jobs = JobRepository(session, now)
        job = jobs.locked(jobs.get(job_id).no)
        require_change(principal, job)
        if job.status in ("succeeded", "failed"):
            raise ConflictError(
                f"job {job.id} has {job.status} already; there is nothing to cancel", code="job_finished"
            )
        if job.desired != "cancelled" and job.status != "cancelled":
            job.desired = "cancelled"
            jobs.event(job, "cancel_requested", f"cancellation asked for by {principal.name}")
        attempt = jobs.current_attempts([job]).get(job.id)
        return job_resource(job, attempt, RunLayout(run_root.root / job.id), now)


def require_change(principal: Principal, job: Job | None = None) -> None:
    """Raises PermissionDeniedError: viewers only look, and a user changes only their own jobs."""
    if principal.role == "viewer":
        raise PermissionDeniedError("a viewer's token can only read")
    if principal.role == "user" and job is not None and job.created_by != principal.name:
        raise PermissionDeniedError(f"job {job.id} belongs to {job.created_by}")


def _answer(job: Job, run_root: RunLayout, now: datetime) -> dict[str, Any]:
    return job_resource(job, None, RunLayout(run_root.root / job.id), now).model_dump(mode="json")
