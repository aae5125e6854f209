"""The routes of plans and start estimates."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from service.api.dependencies import AppState, AppStateDep, EditorDep, NowDep, UserDep
from service.api.json_body import SlotRoute
from service.api.spec_body import SPEC_BODY, read_document
from service.audit.log import set_audit_action, set_audit_target
from service.auth.principals import Principal
from service.auth.unix_users import job_account
from service.code.service import check_code
from service.core.errors import InvalidSpecError, PermissionDeniedError
from service.core.ids import new_id
from service.core.thread_slots import run_in_thread_slot
from service.jobs.dependencies import DependencyRepository, unknown_prerequisites
from service.jobs.prerequisites import waiting_jobs
from service.jobs.service import require_change
from service.plugins.planner.data_plans import MAX_SECONDS
from service.plugins.planner.part import part_of
from service.plugins.planner.start_estimates import NO_QUEUE, NO_SCRIPT, read_estimate, request_estimate
from service.specs.data_files import pin_files
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.data_accounts import (
    MAX_PLANNED_RECORDS,
    MAX_PLANNED_SECONDS,
    PLANNED_RECORDS,
    DataAccounts,
)
from trainyard.contract.wire.plans import PlanResource, StartEstimateResource

PREFIX = "/v1/plans"
ESTIMATES_PREFIX = "/v1/start-estimates"

router = APIRouter(tags=["plans"], route_class=SlotRoute)

_POLL_SECONDS = 0.2
EstimateId = Annotated[
    str, Path(pattern=r"^est_[0-9a-z]{26}$", description="Id of the start estimate, from the plan's `start_estimate`.")
]
PlannedRecords = Annotated[
    int, Query(ge=1, le=MAX_PLANNED_RECORDS, description="Records of each source that are read, at most.")
]
PlannedSeconds = Annotated[
    float,
    Query(
        gt=0, le=MAX_PLANNED_SECONDS, description=f"How long to read, at most; never more than {MAX_SECONDS:g} seconds."
    ),
]
EstimateStart = Annotated[bool, Query(description="Also request a start estimate from the scheduler.")]
WaitSeconds = Annotated[
    float,
    Query(
        ge=0,
        le=10,
        description="How long to wait for the start estimate. After that, read it by the `id` of `start_estimate`.",
    ),
]


@router.post(PREFIX, response_model=PlanResource, operation_id="make_plan", openapi_extra=SPEC_BODY)
async def make_plan(
    request: Request,
    app_state: AppStateDep,
    user: UserDep,
    now: NowDep,
    estimate_start: EstimateStart = False,
    wait_seconds: WaitSeconds = 3.0,
) -> Any:
    """Plan a spec: memory by strategy, disk, and the batch script. Nothing is submitted."""
    body = await request.body()

    def make() -> PlanResource:
        accepted = app_state.acceptance.accept(read_document(body, request.headers), now, user.name)
        accepted = pin_files(app_state.files, accepted)
        plan = part_of(app_state).planner.plan(accepted)
        refusal = _refusal_at_submission(app_state, user, accepted.spec)
        notes = [note for note in (refusal, _wait(app_state, accepted.spec)) if note]
        return plan.model_copy(update={"warnings": [*notes, *plan.warnings]})

    plan = await run_in_thread_slot(make)
    if not estimate_start:
        return plan
    return plan.model_copy(update={"start_estimate": await _estimate(app_state, user, plan, wait_seconds)})


@router.post(f"{PREFIX}/data", response_model=DataAccounts, operation_id="plan_data", openapi_extra=SPEC_BODY)
async def plan_data(
    request: Request,
    app_state: AppStateDep,
    user: EditorDep,
    now: NowDep,
    records: PlannedRecords = PLANNED_RECORDS,
    seconds: PlannedSeconds = MAX_SECONDS,
) -> Any:
    """Read the first records of the data of a spec, and return the data account of each source. Nothing is
    submitted."""
    body = await request.body()

    def accept() -> tuple[TrainingSpec, int | None]:
        accepted = app_state.acceptance.accept(read_document(body, request.headers), now, user.name)
        accepted = pin_files(app_state.files, accepted)
        with app_state.database.read() as session:
            return accepted.spec, job_account(session, user.name, app_state.settings.run_as)

    spec, uid = await run_in_thread_slot(accept)
    return await part_of(app_state).data_planner.accounts(user.name, uid, spec, records, seconds)


def _refusal_at_submission(app_state: AppState, principal: Principal, spec: TrainingSpec) -> str | None:
    """Return why this user could not submit the spec: its secrets or its code; None if nothing is known."""
    try:
        app_state.secrets.require(principal, spec)
        check_code(principal, spec, app_state.settings)
    except (InvalidSpecError, PermissionDeniedError) as error:
        return f"You cannot submit this spec: {error.message}"
    return None


def _wait(app_state: AppState, spec: TrainingSpec) -> str | None:
    """Return for which jobs a job with the spec would wait, or which of them do not exist; None without any."""
    if not spec.after:
        return None
    with app_state.database.read() as session:
        dependencies = DependencyRepository(session).of_new_job(spec.after)
    if problems := unknown_prerequisites(dependencies):
        return f"You cannot submit this spec: {'; '.join(map(str, problems))}"
    return next((condition.message for condition in waiting_jobs(dependencies).values()), None)


async def _estimate(
    app_state: AppState, principal: Principal, plan: PlanResource, wait_seconds: float
) -> StartEstimateResource:
    """Request the start estimate and wait for the reconciler to answer it."""
    if app_state.settings.backend == "local":
        return NO_QUEUE
    if plan.script is None:
        return NO_SCRIPT
    now, script = app_state.clock(), plan.script
    set_audit_action("estimate_start")
    require_change(principal)
    estimate_id = new_id("est", now)
    set_audit_target(estimate_id)
    estimate = await run_in_thread_slot(request_estimate, app_state.database, estimate_id, principal.name, script, now)
    app_state.notify_reconciler()
    for _ in range(round(wait_seconds / _POLL_SECONDS)):
        if estimate.state == "answered":
            break
        await asyncio.sleep(_POLL_SECONDS)
        estimate = await run_in_thread_slot(read_estimate, app_state.database, estimate_id)
    return estimate


@router.get(f"{ESTIMATES_PREFIX}/{{estimate_id}}", operation_id="get_start_estimate")
def get_start_estimate(app_state: AppStateDep, _user: UserDep, estimate_id: EstimateId) -> StartEstimateResource:
    """Read a start estimate. It is deleted an hour after it was answered."""
    return read_estimate(app_state.database, estimate_id)
