"""The route that reads logs."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.api.dependencies import AppStateDep, AttemptNumberQuery, NowDep, UserDep
from service.api.json_body import SlotRoute
from service.core.errors import InvalidRequestError
from service.logs.service import read_log
from trainyard.contract.validation_messages import RANK_PATTERN

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["logs"], route_class=SlotRoute)

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
Rank = Annotated[str, Query(pattern=RANK_PATTERN, description="`0`, `1`, ... or `launch`.")]


@router.get("/logs", operation_id="get_log", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_log(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: str,
    rank: Rank = "0",
    attempt: AttemptNumberQuery = None,
    tail: Annotated[int | None, Query(ge=0, le=100_000, description="Only this many lines from the end.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Start at this byte.")] = 0,
) -> Response:
    """Return one rank's log as text. To continue, send `X-Trainyard-Next-Offset` as `offset`."""
    if tail is not None and offset:
        raise InvalidRequestError("give either `tail` or `offset`", param="tail")
    start, data = read_log(
        app_state.database, job_id, rank, attempt=attempt, tail=tail, offset=offset, limit=MAX_RESPONSE_BYTES, now=now
    )
    headers = {"X-Trainyard-Offset": str(start), "X-Trainyard-Next-Offset": str(start + len(data))}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)
