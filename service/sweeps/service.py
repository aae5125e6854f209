"""What people can ask of sweeps: make one, look at it, end it. One transaction each."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from service.api.dependencies import Services
from service.audit.log import about
from service.auth.principals import Principal
from service.code.service import admit
from service.core.errors import InvalidSpecError, PermissionDeniedError, ServiceError
from service.core.ids import new_id
from service.db.models import Job, Sweep
from service.db.paging import PageRequest
from service.jobs.quota import check_gpu_quota
from service.jobs.repository import JobRepository
from service.jobs.schemas import progress_resource
from service.jobs.service import require_change
from service.jobs.submission import Accepted, check_user_quotas, new_job, record_override, replay
from service.planner import service as planning
from service.sweeps.repository import SweepRepository
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.sweeps import (
    SweepDetail,
    SweepMember,
    SweepRequest,
    SweepResource,
    Values,
    format_values,
    member_spec,
    variants,
)


class Asking(NamedTuple):
    """How a sweep was asked for."""

    key: str | None
    """Its idempotency key."""
    digest: str
    """What that stands for."""
    force: bool


def submit(
    services: Services, user: Principal, body: SweepRequest, key: str | None, now: datetime, *, force: bool = False
) -> Accepted:
    """Make the sweep and all of its jobs durable, or nothing, once for each idempotency key.

    Args:
        force: they are submitted even where they are beyond doubt too large for the GPUs.

    Raises:
        InvalidSpecError: with every problem of every member, each naming the member and the field.
        ConflictError: the key was used for another sweep.
    """
    require_change(user)
    limit = services.settings.max_sweep_members
    if body.size > limit:
        raise InvalidSpecError([Problem(param="grid", message=f"makes {body.size} members; at most {limit} are taken")])
    values = variants(body)
    specs = _accept(services, user, body, values, now)
    asked = {"sweep": body.model_dump()} | ({"force": True} if force else {})
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    sweep = Sweep(
        id=new_id("swp", now),
        name=body.name or specs[0].name,
        created_by=user.name,
        created_at=now,
        max_parallel=body.max_parallel,
        members=[],
    )
    members = list(zip(values, specs, strict=True))
    return _store(services, user, sweep, members, Asking(key, digest, force), now)


def _accept(
    services: Services, user: Principal, body: SweepRequest, values: Sequence[Values], now: datetime
) -> list[TrainingSpec]:
    """Every member's resolved spec."""
    problems: list[Problem] = []
    specs = []
    seen: dict[str, Values] = {}
    for number, changed in enumerate(values):
        try:
            found = _accept_one(services, user, member_spec(body.spec, changed), now)
            specs.append(found.spec)
            same = seen.setdefault(json.dumps(dump_spec(found.plain), sort_keys=True), changed)
            if same is not changed and body.grid and not problems:
                words = f"{format_values(changed)} makes the same job as {format_values(same)}; give each value once"
                problems.append(Problem(param="grid", message=words))
        except (SpecError, InvalidSpecError) as error:
            problems += [_of_member(number, changed, problem) for problem in error.problems]
        except PermissionDeniedError:
            raise
        except ServiceError as error:
            problems.append(_of_member(number, changed, Problem(param=error.param or "", message=error.message)))
    if problems:
        raise InvalidSpecError(problems)
    return specs


def _accept_one(services: Services, user: Principal, document: dict[str, Any], now: datetime) -> planning.Accepted:
    accepted = planning.accept(services, document, now)
    found = accepted.spec
    if found.resume_from is not None:
        raise SpecError([Problem(param="resume_from", message="does not go with a sweep; submit such jobs one by one")])
    admit(user, found, roles=services.settings.code_roles, runs=services.settings.runs)
    check_gpu_quota(services.limits, user.role, found)
    return accepted


def _of_member(number: int, changed: Values, problem: Problem) -> Problem:
    where = f"members.{number}" + (f".{problem.param}" if problem.param else "")
    return Problem(param=where, message=f"{problem.message} (in the member with {format_values(changed)})")


def _store(
    services: Services,
    user: Principal,
    sweep: Sweep,
    members: Sequence[tuple[Values, TrainingSpec]],
    asking: Asking,
    now: datetime,
) -> Accepted:
    key = asking.key
    with services.database.write() as session:
        repository = JobRepository(session, now)
        if key is not None and (before := replay(services.database, repository, user, key, asking.digest)):
            return before
        limits, quota = services.limits, services.settings.quota_bytes
        check_user_quotas(session, user, limits=limits, quota=quota, now=now, count=len(members))
        jobs = []
        for changed, spec in members:
            job = new_job(spec, user, now)
            job.sweep_id, job.sweep_parallel = sweep.id, sweep.max_parallel
            jobs.append((job, changed))
        sweep.members = [{"job_id": job.id, "values": dict(changed)} for job, changed in jobs]
        SweepRepository(session).add(sweep)
        for job, _ in jobs:
            repository.add(job)
            if asking.force:
                record_override(repository, job)
        about(sweep.id)
        answer = _detail(sweep, [job for job, _ in jobs], now).model_dump(mode="json")
        if key is not None:
            repository.store_response(user.id, key, answer)
    return Accepted(job=answer, replayed=False)


def read(services: Services, sweep_id: str, now: datetime) -> SweepDetail:
    """Raises NotFoundError."""
    with services.database.read() as session:
        repository = SweepRepository(session)
        return _detail(repository.get(sweep_id), repository.jobs(sweep_id), now)


def page(services: Services, window: PageRequest) -> tuple[list[SweepResource], bool]:
    """One page, newest first, without members."""
    with services.database.read() as session:
        repository = SweepRepository(session)
        rows, more = repository.page(after=window.after, limit=window.limit, descending=window.descending)
        counts = repository.counts([row.id for row in rows])
    return [SweepResource(**_facts(row, counts.get(row.id, {}))) for row in rows], more


def cancel(services: Services, user: Principal, sweep_id: str, now: datetime) -> SweepDetail:
    """Record that every member that is not over is to end. Asking again changes nothing."""
    with services.database.write() as session:
        repository, jobs = SweepRepository(session), JobRepository(session, now)
        sweep = repository.get(sweep_id)
        if user.role == "user" and sweep.created_by != user.name:
            raise PermissionDeniedError(f"sweep {sweep_id} belongs to {sweep.created_by}")
        require_change(user)
        for one in repository.jobs(sweep_id):
            job = jobs.get_for_update(one.pk)
            if job.status not in TERMINAL and job.desired != "cancelled":
                job.desired = "cancelled"
                jobs.add_event(job, "cancel_requested", f"cancellation of its sweep asked for by {user.name}")
        return _detail(sweep, repository.jobs(sweep_id), now)


def _facts(sweep: Sweep, counts: dict[str, int]) -> dict[str, Any]:
    fields = dict.fromkeys(path for member in sweep.members for path in member["values"])
    return {
        "id": sweep.id,
        "name": sweep.name,
        "created_by": sweep.created_by,
        "created_at": sweep.created_at,
        "max_parallel": sweep.max_parallel,
        "fields": list(fields),
        "size": len(sweep.members),
        "counts": counts,
    }


def _detail(sweep: Sweep, jobs: Sequence[Job], now: datetime) -> SweepDetail:
    by_id = {job.id: job for job in jobs}
    members = [_member(one, by_id.get(one["job_id"]), now) for one in sweep.members]
    return SweepDetail(**_facts(sweep, dict(Counter(job.status for job in jobs))), members=members)


def _member(one: dict[str, Any], job: Job | None, now: datetime) -> SweepMember:
    if job is None:
        return SweepMember(job_id=one["job_id"], values=one["values"], status_message="was deleted")
    return SweepMember(
        job_id=job.id,
        values=one["values"],
        status=job.status,
        status_message=job.status_message,
        progress=progress_resource(job, now),
        metrics=job.latest,
    )
