"""From an accepted spec to a durable job, once for each idempotency key."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.audit.log import about
from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, QuotaExceededError
from service.core.ids import new_job_id
from service.db.engine import Database
from service.db.models import Job
from service.jobs.forks import find_origin, link_origin, unlink_origin
from service.jobs.quota import NO_QUOTAS, UserQuotas, check_gpu_quota, check_queue_quota
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource
from service.jobs.service import require_change
from service.maintenance.repository import MaintenanceRepository
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.launch import Origin

MAX_KEY = 255
PREFLIGHT_OVERRIDDEN = "preflight_overridden"
"""The event of a job that is submitted however large it is."""


@dataclass(frozen=True)
class Asked:
    """What one request asks for."""

    spec: TrainingSpec
    key: str | None = None
    """Its idempotency key."""
    plain: TrainingSpec | None = None
    """The spec as the key stands for it, where that is not the one to store."""
    force: bool = False
    """What is beyond doubt too large for the GPUs is submitted all the same."""

    def digest(self) -> str:
        """What the key stands for."""
        document = dump_spec(self.plain or self.spec) | ({"force": True} if self.force else {})
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class House:
    """Where jobs live, and how much of it is one person's."""

    run_root: RunLayout
    quota: int | None = None
    """Bytes; None: no limit."""


@dataclass(frozen=True)
class Accepted:
    """The answer to a submission; `replayed` when it was given before."""

    job: dict[str, Any]
    replayed: bool


def submit(
    database: Database, principal: Principal, asked: Asked, house: House, now: datetime, limits: UserQuotas = NO_QUOTAS
) -> Accepted:
    """Make the job durable, once for each idempotency key.

    Raises:
        ConflictError: the key was used for another spec, or the checkpoint to start from is not there.
        InvalidRequestError: `resume_from` names what there is not.
        QuotaExceededError: the person's jobs hold too much on disk.
        InvalidSpecError: it asks for more GPUs than one person's jobs may ever have.
    """
    require_change(principal)
    check_gpu_quota(limits, principal.role, asked.spec)
    job_id = new_job_id(now)
    runs, run = house.run_root.root, RunLayout(house.run_root.root / job_id)
    # Before the checkpoint is looked up: a newer one may be there when the request is repeated.
    repeated = _is_repeated(database, principal, asked.key, now)
    spec, origin = asked.spec, None if repeated else find_origin(database, asked.spec, now)
    accepted = None
    try:
        if origin is not None:
            link_origin(RunLayout(runs / origin.job_id).checkpoint(origin.step), run.origin(origin.step))
            spec = spec.model_copy(update={"resume_from": f"{origin.job_id}:{origin.step}"})
        job = new_job(spec, principal, now, job_id=job_id, origin=origin)
        accepted = _store(database, principal, job, asked, house, now, limits)
    finally:
        if origin is not None and (accepted is None or accepted.replayed):
            unlink_origin(run)
    return accepted


def _is_repeated(database: Database, principal: Principal, key: str | None, now: datetime) -> bool:
    """Then the answer is known, and what it was made from may be gone by now."""
    if key is None:
        return False
    with database.read() as session:
        return JobRepository(session, now).has_response(principal.id, key)


def _require_room(used: int, quota: int, principal: Principal) -> None:
    if used >= quota:
        raise QuotaExceededError(
            f"the jobs of {principal.name} hold {used / 1e9:.3g} GB on disk, and {quota / 1e9:.3g} GB is what one "
            "person's may; delete some (`trainyard delete JOB`, or `--checkpoints` alone)"
        )


def check_user_quotas(
    session: Session, principal: Principal, *, limits: UserQuotas, quota: int | None, now: datetime, count: int = 1
) -> None:
    """Whether a person may have so many jobs more.

    Raises:
        QuotaExceededError: theirs hold too much on disk.
        ConflictError: too many of theirs wait already.
    """
    if quota is not None:
        _require_room(MaintenanceRepository(session).usage_of(principal.name), quota, principal)
    check_queue_quota(limits, principal.name, JobRepository(session, now).count_queued(principal.name), count)


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
        submitter_role=principal.role or "user",
        gpus=spec.gpus,
        created_at=now,
        updated_at=now,
        latest={},
        origin=origin.model_dump(mode="json") if origin else None,
    )


def _store(
    database: Database, principal: Principal, job: Job, asked: Asked, house: House, now: datetime, limits: UserQuotas
) -> Accepted:
    key, run_root = asked.key, house.run_root
    with database.write() as session:
        jobs = JobRepository(session, now)
        if key is not None and (before := replay(database, jobs, principal, key, asked.digest())):
            return before
        check_user_quotas(session, principal, limits=limits, quota=house.quota, now=now)
        jobs.add(job)
        about(job.id)
        if job.origin is not None:
            jobs.add_event(job, "forked", _fork_words(Origin.model_validate(job.origin)), data=job.origin)
        if asked.force:
            record_override(jobs, job)
        if key is not None:
            jobs.store_response(principal.id, key, _answer(job, run_root, now))
    # Once more where it was remembered: other writers do not wait for it.
    return Accepted(job=_answer(job, run_root, now), replayed=False)


def record_override(jobs: JobRepository, job: Job) -> None:
    """The preflight goes by this event."""
    said = f"{job.created_by} has it submitted even if it cannot fit the GPUs' memory"
    jobs.add_event(job, PREFLIGHT_OVERRIDDEN, said, level="warning")


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
    known = jobs.claim_idempotency_key(database, principal.id, key, digest)
    if known is None:
        return None
    if known.digest != digest:
        raise ConflictError(
            "this Idempotency-Key was used with another request; take a new key for a new one",
            code="idempotency_key_reused",
            param="Idempotency-Key",
        )
    return Accepted(job=known.response, replayed=True)


def _answer(job: Job, run_root: RunLayout, now: datetime) -> dict[str, Any]:
    return job_resource(job, None, RunLayout(run_root.root / job.id), now).model_dump(mode="json")
