"""Routes of plans and start estimates."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool

from service.api.dependencies import AppState, AppStateDep, NowDep, UserDep
from service.api.routes.jobs import SPEC_BODY, read_document
from service.auth.principals import Principal
from service.planner import service as actions
from service.planner import start_estimates
from trainyard.contract.wire.plans import AskResource, PlanResource

router = APIRouter(prefix="/v1", tags=["plans"])

_POLL_SECONDS = 0.2
AskId = Annotated[str, Path(pattern=r"^ask_[0-9a-z]{26}$")]
MayAsk = Annotated[bool, Query(description="Also request a start estimate from the scheduler.")]
WaitSeconds = Annotated[
    float,
    Query(ge=0, le=10, description="How long to wait for the estimate; later it is read by the `id` of `ask`."),
]


@router.post("/plans", response_model=PlanResource, operation_id="make_plan", openapi_extra=SPEC_BODY)
async def make_plan(
    request: Request,
    services: AppStateDep,
    user: UserDep,
    now: NowDep,
    ask_scheduler: MayAsk = False,
    wait_seconds: WaitSeconds = 3.0,
) -> Any:
    """Plan a spec: memory by strategy, disk, batch script and warnings. Nothing is submitted."""
    document = read_document(await request.body(), request.headers)
    plan = await run_in_threadpool(actions.plan, services, document, now)
    if not ask_scheduler:
        return plan
    return plan.model_copy(update={"ask": await _answer(services, user, plan, wait_seconds)})


async def _answer(services: AppState, user: Principal, plan: PlanResource, seconds: float) -> AskResource:
    """Request a start estimate, and wait at most so many seconds until the reconciler has answered it."""
    if services.settings.backend == "local":
        return start_estimates.NO_QUEUE
    if plan.script is None:
        return start_estimates.NO_SCRIPT
    estimate = await run_in_threadpool(start_estimates.ask, services.database, user, plan.script, services.clock())
    services.notify_reconciler()
    for _ in range(round(seconds / _POLL_SECONDS)):
        if estimate.state == "answered":
            break
        await asyncio.sleep(_POLL_SECONDS)
        estimate = await run_in_threadpool(start_estimates.read, services.database, str(estimate.id))
    return estimate


@router.get("/asks/{ask_id}", operation_id="get_ask", tags=["plans"])
def get_ask(services: AppStateDep, _user: UserDep, ask_id: AskId) -> AskResource:
    """Get a start estimate; it is stored for an hour."""
    return start_estimates.read(services.database, ask_id)
