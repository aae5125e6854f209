"""The routes of plans, and of what the scheduler says of them."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool

from service.api.dependencies import AppState, AppStateDep, NowDep, UserDep
from service.api.routes.jobs import SPEC_BODY, read_document
from service.auth.principals import Principal
from service.planner import service as actions
from service.planner import start_estimates as asking
from trainyard.contract.wire.plans import AskResource, PlanResource

router = APIRouter(prefix="/v1", tags=["plans"])

_LOOK_SECONDS = 0.2
AskId = Annotated[str, Path(pattern=r"^ask_[0-9a-z]{26}$")]
MayAsk = Annotated[
    bool, Query(description="Have the scheduler asked too what would become of it, were it submitted now.")
]
WaitSeconds = Annotated[
    float, Query(ge=0, le=10, description="For the scheduler's answer; without one, read it by the `id` of `ask`.")
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
    """What a spec will need: memory by strategy, disk, the batch script. Nothing is submitted."""
    document = read_document(await request.body(), request.headers)
    plan = await run_in_threadpool(actions.plan, services, document, now)
    if not ask_scheduler:
        return plan
    return plan.model_copy(update={"ask": await _answer(services, user, plan, wait_seconds)})


async def _answer(services: AppState, user: Principal, plan: PlanResource, seconds: float) -> AskResource:
    """The scheduler's, once the reconciler has it; after so many seconds only the question's id."""
    if services.settings.backend == "local":
        return asking.NO_QUEUE
    if plan.script is None:
        return asking.NO_SCRIPT
    asked = await run_in_threadpool(asking.ask, services.database, user, plan.script, services.clock())
    services.notify_reconciler()
    for _ in range(round(seconds / _LOOK_SECONDS)):
        if asked.state == "answered":
            break
        await asyncio.sleep(_LOOK_SECONDS)
        asked = await run_in_threadpool(asking.read, services.database, str(asked.id))
    return asked


@router.get("/asks/{ask_id}", operation_id="get_ask", tags=["plans"])
def get_ask(services: AppStateDep, _user: UserDep, ask_id: AskId) -> AskResource:
    """What the scheduler says of a plan, once it has answered; kept for an hour."""
    return asking.read(services.database, ask_id)
