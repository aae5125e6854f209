"""Routes of live streams."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from service.api.dependencies import AppState, AppStateDep, JobId, UserDep
from service.api.json_body import SlotRoute
from service.auth.principals import Principal, is_token_valid
from service.core.errors import InvalidRequestError
from service.core.thread_slots import run_in_thread_slot
from service.streaming.broadcaster import StreamOffset
from service.streaming.global_feed import parse_offset
from service.streaming.sources import JobSource
from service.streaming.subscription import Subscription
from trainyard.contract.validation_messages import RANK_PATTERN

router = APIRouter(prefix="/v1", tags=["streams"], route_class=SlotRoute)

TOKEN_CHECK_SECONDS = 30.0
"""Interval at which an open stream checks that its token is still valid."""

HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
"""Headers that make proxies forward each event at once and unchanged."""

JobEventId = Annotated[
    str | None,
    Header(
        max_length=64, description="The id of the last event received.", json_schema_extra={"pattern": "^[0-9]{0,18}$"}
    ),
]
GlobalEventId = Annotated[
    str | None,
    Header(
        max_length=64,
        description="The id of the last event received.",
        json_schema_extra={"pattern": "^([0-9]{1,18}-[0-9]{1,18})?$"},
    ),
]


@router.get(
    "/jobs/{job_id}/stream",
    operation_id="stream_job",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "Nothing will follow."}},
)
async def stream_job(
    app_state: AppStateDep,
    user: UserDep,
    job_id: JobId,
    logs: Annotated[bool, Query(description="Whether to include log lines.")] = True,
    rank: Annotated[str | None, Query(pattern=RANK_PATTERN, description="Only this rank's log lines.")] = None,
    after: Annotated[int, Query(ge=0, le=2**62, description="The id of the last event received.")] = 0,
    last_event_id: JobEventId = None,
) -> Response:
    """Stream a job's status, events, points, checkpoints and log lines, from any event id on.

    The stream ends when the job has ended and everything was sent; a client that reconnects then receives 204.
    """
    if last_event_id:
        if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
            raise InvalidRequestError("is not the id of an event of this stream", param="Last-Event-ID")
        after = int(last_event_id)
    load = partial(JobSource, app_state.database, app_state.settings.runs, app_state.clock, job_id)
    source = await run_in_thread_slot(load)
    subscription = Subscription(app_state.broadcaster, source, logs=logs, rank=rank, owner=user.name)
    return await _respond(app_state, user, subscription, StreamOffset(after))


@router.get(
    "/stream",
    operation_id="stream_jobs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_jobs(app_state: AppStateDep, user: UserDep, last_event_id: GlobalEventId = None) -> Response:
    """Stream the status, events, checkpoints and latest metrics of all jobs, from now or from `Last-Event-ID` on.

    Ids have the form `12-34`. An event `reset` means that events which the client missed are no longer stored.
    """
    offset = parse_offset(last_event_id) if last_event_id else None
    if last_event_id and offset is None:
        raise InvalidRequestError("is not the id of an event of this stream", param="Last-Event-ID")
    subscription = Subscription(app_state.broadcaster, app_state.global_source, logs=False, owner=user.name)
    return await _respond(app_state, user, subscription, offset)


async def _respond(
    app_state: AppState, user: Principal, subscription: Subscription, after: StreamOffset | None
) -> Response:
    if not await subscription.start(after):
        return Response(status_code=204)
    texts = _until_token_expires(app_state, user, subscription.events())
    return StreamingResponse(texts, media_type="text/event-stream", headers=HEADERS)


async def _until_token_expires(app_state: AppState, user: Principal, texts: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """Yield the stream until its token is revoked or expires: a stream may be open for days."""
    checked_at = monotonic()
    async with aclosing(texts):
        async for text in texts:
            if monotonic() - checked_at >= TOKEN_CHECK_SECONDS:
                if not await run_in_thread_slot(is_token_valid, app_state.database, user.id, app_state.clock()):
                    return
                checked_at = monotonic()
            yield text
