"""The requests of users about sweeps: submit, read and cancel. Each is a transaction."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from service.audit.log import add_audit_detail, set_audit_target
from service.auth.principals import Principal
from service.auth.unix_users import job_account
from service.core.errors import InvalidSpecError, PermissionDeniedError
from service.core.ids import new_id
from service.core.settings import RunAs
from service.db.engine import Database
from service.db.models import Sweep
from service.db.paging import PageRequest
from service.jobs.dependencies import DependencyRepository
from service.jobs.idempotency import IdempotencyRepository
from service.jobs.quota import UserQuotas, check_gpu_quota
from service.jobs.repository import JobRepository
from service.jobs.service import require_change
from service.jobs.submission import (
    SubmissionResult,
    admit_to_project,
    check_user_quotas,
    claim_key,
    new_job,
    record_override,
    record_warnings,
    request_digest,
)
from service.plugins.sweeps.repository import SweepRepository
from service.plugins.sweeps.resources import sweep_detail, sweep_resources
from service.plugins.sweeps.search.submission import new_search, refusals
from service.projects.rules import ProjectFacts, check_project_quota, may_change_job
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from trainyard.contract.problems import MAX_PROBLEMS, Problem, SpecError
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.sweeps import (
    SweepDetail,
    SweepRequest,
    SweepResource,
    Values,
    format_values,
    member_spec,
    variants,
)

AcceptAll = Callable[[list[dict[str, Any]]], Iterable[AcceptedSpec | RejectedSpec]]
"""Validates and resolves documents. Raises ServiceError if they take too long."""
CheckSpec = Callable[[AcceptedSpec], None]
"""Checks whether the user may submit a spec. Raises ServiceError."""
_VERBATIM = frozenset({"auto"})
"""Requested values that tell more than their resolved values."""


class SubmissionOptions(NamedTuple):
    """The limits and options of a submission."""

    quotas: UserQuotas
    max_members: int
    idempotency_key: str | None = None
    force: bool = False
    """Skip the check that the members fit the GPUs' memory."""
    run_as: RunAs = "service"


def submit(
    database: Database,
    principal: Principal,
    request: SweepRequest,
    accept_all: AcceptAll,
    check: CheckSpec,
    options: SubmissionOptions,
    now: datetime,
) -> SubmissionResult:
    """Make the sweep and all of its jobs durable, or nothing, once for each idempotency key.

    Raises:
        InvalidSpecError: with the problems of all members; each names the member and the field.
        ConflictError: the key was used for another request, or too many of the user's jobs are queued.
    """
    require_change(principal)
    check_size(request, options.max_members)

    def check_member(member: AcceptedSpec) -> None:
        check(member)
        _check_member(principal, member.spec, options.quotas)

    digest = request_digest(_digested(request) | ({"force": True} if options.force else {}))
    if request.search is not None:
        search = new_search(principal, request, request.search, accept_all, check_member, now)
        search.force = options.force
        return _store(database, principal, search, [], options, digest, now)
    values = variants(request)
    accepted = accept_all([member_spec(request.spec, changes) for changes in values])
    members = _accepted_members(request, zip(values, accepted, strict=False), check_member)
    sweep = Sweep(
        id=new_id("swp", now),
        name=request.name or members[0].spec.name,
        created_by=principal.name,
        created_at=now,
        max_parallel=request.max_parallel,
        members=[],
    )
    return _store(database, principal, sweep, list(zip(values, members, strict=True)), options, digest, now)


def _digested(request: SweepRequest) -> dict[str, Any]:
    # Without a search as before there were any, so that keys stay valid.
    return {"sweep": request.model_dump(exclude=None if request.search else {"search"})}


def check_size(request: SweepRequest, limit: int) -> None:
    """Raises InvalidSpecError: a sweep has too many members."""
    if request.size > limit:
        param = "search.max_trials" if request.search else "grid"
        raise InvalidSpecError(
            [Problem(param=param, message=f"results in {request.size} members; the limit is {limit}")]
        )


def check_listed(count: int, limit: int) -> None:
    """Raises InvalidSpecError: a request lists too many members."""
    if count > limit:
        raise InvalidSpecError([Problem(param="members", message=f"has {count} members; the limit is {limit}")])


def _accepted_members(
    request: SweepRequest, members: Iterable[tuple[Values, AcceptedSpec | RejectedSpec]], check: CheckSpec
) -> list[AcceptedSpec]:
    """Return the accepted spec of every member.

    Raises:
        InvalidSpecError: the members have problems; the check ends with the member that reaches `MAX_PROBLEMS`.
    """
    problems: list[Problem] = []
    result = []
    first_with: dict[str, Values] = {}
    for number, (changes, accepted) in enumerate(members):
        if isinstance(accepted, RejectedSpec):
            problems += [_member_problem(number, changes, problem) for problem in accepted.problems]
        else:
            result.append(accepted)
            problems += [_member_problem(number, changes, problem) for problem in refusals(accepted, check)]
            same = first_with.setdefault(json.dumps(dump_spec(accepted.unresolved), sort_keys=True), changes)
            if same is not changes and request.grid and not problems:
                message = f"{format_values(changes)} is the same job as {format_values(same)}; list each value once"
                problems.append(Problem(param="grid", message=message))
        if len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise InvalidSpecError(problems)
    return result


def _check_member(principal: Principal, spec: TrainingSpec, quotas: UserQuotas) -> None:
    if spec.resume_from is not None:
        message = "is not supported in a sweep; submit such jobs one by one"
        raise SpecError([Problem(param="resume_from", message=message)])
    check_gpu_quota(quotas, principal.role, spec)


def _member_problem(number: int, changes: Values, problem: Problem) -> Problem:
    param = f"members.{number}" + (f".{problem.param}" if problem.param else "")
    return Problem(param=param, message=f"{problem.message} (in the member with {format_values(changes)})")


def _store(
    database: Database,
    principal: Principal,
    sweep: Sweep,
    members: Sequence[tuple[Values, AcceptedSpec]],
    options: SubmissionOptions,
    digest: str,
    now: datetime,
) -> SubmissionResult:
    key = options.idempotency_key
    with database.write() as session:
        repository, keys = JobRepository(session, now), IdempotencyRepository(session, now)
        specs = [accepted.spec for _, accepted in members] or [parse_stored_spec(sweep.spec or {})]
        project = _admit(session, principal, specs)
        if key is not None and (stored := claim_key(database, keys, principal, key, digest)):
            return stored
        sweep.project = specs[0].project
        if project is not None:
            sweep.project = project.name
            add_audit_detail(project=project.name)
        if members:
            queued = 0 if project is None else repository.projects.count_queued(project.name)
            check_project_quota(project, max(spec.gpus for spec in specs), queued, len(members))
            check_user_quotas(session, principal, options.quotas, now, count=len(members))
        for after in dict.fromkeys(accepted.spec.after for _, accepted in members) if members else [_after(sweep)]:
            DependencyRepository(session).require(after)
        unix_uid = job_account(session, principal.name, options.run_as)
        jobs = []
        for changes, accepted in members:
            job = new_job(accepted.spec, principal, now)
            job.unix_uid, job.project = unix_uid, sweep.project
            job.sweep_id, job.sweep_parallel = sweep.id, sweep.max_parallel
            jobs.append(job)
            sweep.members.append({"job_id": job.id, "values": typed_values(changes, job.spec)})
        session.add(sweep)
        repository.add(*jobs)
        for job, (_, accepted) in zip(jobs, members, strict=True):
            if options.force:
                record_override(repository, job)
            record_warnings(repository, job, accepted.warnings)
        set_audit_target(sweep.id)
        session.flush()
        response = sweep_detail(SweepRepository(session), sweep, now).model_dump(mode="json")
        if key is not None:
            keys.store_response(principal.id, key, response)
    return SubmissionResult(response, replayed=False)


def _admit(session: Session, principal: Principal, specs: Sequence[TrainingSpec]) -> ProjectFacts | None:
    """Return the created project of all members; None: they name none, or a label.

    Raises:
        InvalidSpecError: the members name several projects.
        PermissionDeniedError: the user is not a member of the project.
    """
    if len({spec.project for spec in specs}) > 1:
        raise InvalidSpecError(
            [Problem(param="project", message="differs between the members; a sweep has one project")]
        )
    return admit_to_project(session, principal, specs[0])


def _after(sweep: Sweep) -> tuple[str, ...]:
    """Return the jobs for which the trials of a search wait."""
    return tuple((sweep.spec or {}).get("after", ()))


def read(database: Database, sweep_id: str, now: datetime) -> SweepDetail:
    """Return a sweep with its members. Raises NotFoundError."""
    with database.read() as session:
        repository = SweepRepository(session)
        return sweep_detail(repository, repository.get(sweep_id), now)


def list_page(database: Database, page: PageRequest) -> tuple[list[SweepResource], bool]:
    """Return a page of sweeps without their members, and whether more follow."""
    with database.read() as session:
        repository = SweepRepository(session)
        rows, has_more = repository.list_page(page)
        return sweep_resources(repository, rows), has_more


def cancel(database: Database, principal: Principal, sweep_id: str, now: datetime) -> SweepDetail:
    """Record that every member that has not ended is to end. Repeating the request changes nothing."""
    with database.write() as session:
        repository, jobs = SweepRepository(session), JobRepository(session, now)
        sweep = repository.get_for_update(repository.get(sweep_id).id)
        require_change(principal)
        if not may_change_job(principal, sweep.created_by, jobs.projects.facts(sweep.project, principal)):
            raise PermissionDeniedError(f"sweep {sweep_id} belongs to {sweep.created_by}")
        if sweep.state == "running":
            sweep.state, sweep.message = "cancelled", f"Cancelled by {principal.name}."
        for member in repository.list_jobs(sweep_id):
            job = jobs.get_for_update(member.pk)
            if job.status not in TERMINAL and job.desired != "cancelled":
                job.desired = "cancelled"
                jobs.add_event(job, "cancel_requested", f"cancellation of the sweep requested by {principal.name}")
        return sweep_detail(repository, sweep, now)


def typed_values(changes: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes with the type that the spec gives them: the text `1e-2` becomes the number 0.01."""
    return {path: _typed(value, _at(spec, path)) for path, value in changes.items()}


def _typed(requested: Any, resolved: Any) -> Any:
    is_scalar = isinstance(resolved, bool | int | float)
    return (
        resolved if is_scalar and isinstance(requested, str | int | float) and requested not in _VERBATIM else requested
    )


def _at(spec: Mapping[str, Any], path: str) -> Any:
    inner: Any = spec
    for part in path.split("."):
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner
