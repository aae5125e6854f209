"""The routes of live streams."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from service.api.dependencies import AppState, AppStateDep, UserDep
from service.auth.principals import Principal, is_token_valid
from service.core.errors import InvalidRequestError
from service.streaming.broadcaster import Place
from service.streaming.global_feed import parse_place
from service.streaming.sources import JobNews
from service.streaming.subscription import Following
from trainyard.contract.validation_messages import RANK_PATTERN

router = APIRouter(prefix="/v1", tags=["reports"])

TOKEN_SECONDS = 30.0
"""How often an open stream asks whether its token is good still; what would be sent meanwhile is."""

HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
"""Proxies must hand each event on as it comes, unchanged."""

LastEventId = Annotated[
    str | None,
    Header(
        max_length=64,
        description="The id of the last event that was seen.",
        json_schema_extra={"pattern": "^[0-9]{0,18}$"},
    ),
]
LastPlace = Annotated[
    str | None,
    Header(
        max_length=64,
        description="The id of the last event that was seen.",
        json_schema_extra={"pattern": "^([0-9]{1,18}-[0-9]{1,18})?$"},
    ),
]


@router.get(
    "/jobs/{job_id}/stream",
    operation_id="stream_job",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "Nothing more will come."}},
)
async def stream_job(
    services: AppStateDep,
    user: UserDep,
    job_id: str,
    logs: bool = True,
    rank: Annotated[str | None, Query(pattern=RANK_PATTERN, description="Of the logs, only this one.")] = None,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """Status, events, points, checkpoints and log lines as they come, from any place on.

    Ends when the job is over and everything was sent; a client that comes back then is told so by a 204.
    """
    if last_event_id:
        if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
            raise InvalidRequestError("is not the id of an event of this stream", param="Last-Event-ID")
        after = int(last_event_id)
    make = partial(JobNews, services.database, services.settings.runs, services.clock, job_id)
    following = Following(services.hub, await run_in_threadpool(make), logs=logs, rank=rank)
    return await _answer(services, user, following, (after, 0))


@router.get(
    "/stream",
    operation_id="stream_jobs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_jobs(services: AppStateDep, user: UserDep, last_event_id: LastPlace = None) -> Response:
    """Status, events, checkpoints and newest metrics of every job, from now on or from `Last-Event-ID` on.

    Ids are of the form `12-34`. An event `reset` says that what the client missed is no longer kept.
    """
    place = parse_place(last_event_id) if last_event_id else None
    if last_event_id and place is None:
        raise InvalidRequestError("is not the id of an event of this stream", param="Last-Event-ID")
    following = Following(services.hub, services.feed, logs=False)
    return await _answer(services, user, following, place)


async def _answer(services: AppState, user: Principal, following: Following, after: Place | None) -> Response:
    if not await following.start(after):
        return Response(status_code=204)
    texts = _while_good(services, user, following.events())
    return StreamingResponse(texts, media_type="text/event-stream", headers=HEADERS)


async def _while_good(services: AppState, user: Principal, texts: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """A stream that ends with its token, which may be revoked or expire while it is open for days."""
    asked = monotonic()
    async with aclosing(texts):
        async for text in texts:
            if monotonic() - asked >= TOKEN_SECONDS:
                if not await run_in_threadpool(is_token_valid, services.database, user.id, services.clock()):
                    return
                asked = monotonic()
            yield text
