"""The route of plans."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from service.dependencies import NowDep, PersonDep, ServicesDep
from service.jobs.endpoints import SPEC_BODY, read_document
from service.planner import actions
from trainyard.contract.plans import PlanResource

router = APIRouter(prefix="/v1/plans", tags=["plans"])


@router.post("", response_model=PlanResource, operation_id="make_plan", openapi_extra=SPEC_BODY)
async def make_plan(request: Request, services: ServicesDep, _person: PersonDep, now: NowDep) -> Any:
    """What a spec will need: memory by strategy, disk, the batch script. Nothing is stored, nothing is submitted."""
    document = read_document(await request.body(), request.headers)
    return await run_in_threadpool(actions.plan, services, document, now)
