"""Submission of a search: its ends are checked, and its plan is stored. Trials are proposed later, by the leader."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from service.auth.principals import Principal
from service.core.errors import InvalidSpecError, PermissionDeniedError, ServiceError
from service.core.ids import new_id
from service.db.models import Sweep
from service.plugins.sweeps.search.plan import plan_search
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.wire.search import Search, corner_points
from trainyard.contract.wire.sweeps import DEFAULT_PARALLEL, SweepRequest, format_values, member_spec

_SHOWN_PROBLEMS = 20


def new_search(
    principal: Principal,
    request: SweepRequest,
    search: Search,
    accept_all: Callable[[list[dict[str, Any]]], Iterable[AcceptedSpec | RejectedSpec]],
    check: Callable[[AcceptedSpec], None],
    now: datetime,
) -> Sweep:
    """Return the sweep of a search, not yet stored.

    Raises:
        InvalidSpecError: the algorithm cannot search over the spec, or the spec is rejected at the ends of the ranges.
    """
    points = corner_points(search.space)
    problems: list[Problem] = []
    first: AcceptedSpec | None = None
    accepted = accept_all([member_spec(request.spec, point) for point in points])
    for point, result in zip(points, accepted, strict=False):
        of_point = result.problems if isinstance(result, RejectedSpec) else refusals(result, check)
        problems += [_point_problem(point, problem) for problem in of_point]
        first = first or (result if isinstance(result, AcceptedSpec) else None)
    if problems:
        raise InvalidSpecError(problems[:_SHOWN_PROBLEMS])
    assert first is not None
    try:
        plan = plan_search(search, first.spec, request.max_parallel or DEFAULT_PARALLEL)
    except SpecError as error:
        raise InvalidSpecError(error.problems) from None
    return Sweep(
        id=new_id("swp", now),
        name=request.name or first.spec.name,
        created_by=principal.name,
        created_at=now,
        max_parallel=plan.max_parallel,
        members=[],
        spec=request.spec,
        search=plan.model_dump(mode="json"),
        state="running",
        submitter_role=principal.role or "user",
        may_run_code=principal.may_run_code,
    )


def submitter_of(sweep: Sweep) -> Principal:
    """Return who submitted a search, as of the submission."""
    role: Any = sweep.submitter_role
    return Principal("user", sweep.id, sweep.created_by, role, sweep.may_run_code)


def refusals(accepted: AcceptedSpec, check: Callable[[AcceptedSpec], None]) -> Sequence[Problem]:
    """Return why a member may not be submitted.

    Raises:
        PermissionDeniedError: the user may not submit it, which applies to the whole sweep.
    """
    try:
        check(accepted)
    except PermissionDeniedError:
        raise
    except (SpecError, InvalidSpecError) as error:
        return error.problems
    except ServiceError as error:
        return [Problem(param=error.param or "", message=error.message)]
    return ()


def _point_problem(point: dict[str, Any], problem: Problem) -> Problem:
    param = f"spec.{problem.param}" if problem.param else "spec"
    return Problem(param=param, message=f"{problem.message} (at {format_values(point)})")
