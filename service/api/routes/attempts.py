"""The worker's routes, and the reading of curves, logs and streams."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.api.dependencies import (
    AppState,
    AppStateDep,
    AttemptId,
    AttemptNumber,
    NowDep,
    UserDep,
    WorkerDep,
    get_app_state,
)
from service.api.metrics_body_schema import METRICS_BODY
from service.api.query_params import refuse_unknown
from service.attempts.service import Ingest, read_log
from service.core.errors import BodyTooLargeError, InvalidRequestError
from service.metrics.ingest.decode import decode_batch
from trainyard.contract.validation_messages import RANK_PATTERN
from trainyard.contract.wire.reports import (
    MAX_LOG_CHUNK,
    CheckpointReport,
    Claim,
    ClaimGrant,
    EventsBatch,
    FinishRecord,
    Heartbeat,
    HeartbeatReply,
)

worker_router = APIRouter(prefix="/v1/attempts/{aid}", tags=["worker"])
router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["reports"])

LOG_ANSWER = 4 * 1024 * 1024
Rank = Annotated[str, Query(pattern=RANK_PATTERN, description="`0`, `1`, ... or `launch`.")]


def _ingest(services: AppState, aid: str) -> Ingest:
    return Ingest(services.database, aid, services.clock(), services.metrics.ingested)


@worker_router.post("/claim", operation_id="claim_attempt")
def claim(services: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: Claim) -> ClaimGrant:
    """Be the one run of this attempt, or learn that another is."""
    granted = _ingest(services, aid).claim(body)
    services.failpoint("claim.after-commit")
    return granted


@worker_router.post("/heartbeat", operation_id="send_heartbeat")
def heartbeat(services: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: Heartbeat) -> HeartbeatReply:
    """A sign of life; the answer says whether to go on."""
    return _ingest(services, aid).heartbeat()


@worker_router.post("/metrics", operation_id="report_metrics", openapi_extra=METRICS_BODY)
async def metrics(request: Request, aid: AttemptId) -> Response:
    """Points, all or none; a repeated delivery changes nothing. Answered after the commit."""
    services = await get_app_state(request)  # a parameter would cost a tenth of the request
    await services.worker_tokens.require(request.headers.get("authorization"), aid, services.clock())
    refuse_unknown(request)
    body = await request.body()
    batch = decode_batch(body, services.ingest_queue.known_keys)
    stored = await services.ingest_queue.submit(aid, batch, len(body))
    services.metrics.ingested("points", len(batch.rows))
    answer = b'{"accepted":%d,"duplicates":%d}' % (stored.inserted, stored.duplicates)
    return Response(answer, media_type="application/json")


@worker_router.post("/events", operation_id="report_events")
def events(services: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: EventsBatch) -> dict[str, int]:
    """Lines for the job's history, each once."""
    return {"accepted": _ingest(services, aid).events(body)}


@worker_router.post("/checkpoints", operation_id="report_checkpoint")
def checkpoints(services: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: CheckpointReport) -> dict[str, int]:
    """A complete checkpoint."""
    _ingest(services, aid).checkpoint(body)
    return {"accepted": 1}


@worker_router.post("/logs", operation_id="append_log")
async def append_log(
    request: Request,
    services: AppStateDep,
    _worker: WorkerDep,
    aid: AttemptId,
    rank: Rank,
    offset: Annotated[int, Query(ge=0, le=2**62)],
) -> dict[str, int]:
    """The next bytes of a rank's log, as they are."""
    data = await request.body()
    if len(data) > MAX_LOG_CHUNK:
        raise BodyTooLargeError(f"one append takes at most {MAX_LOG_CHUNK} bytes")
    append = partial(_ingest(services, aid).log, rank, offset, data, services.settings.log_limit)
    return {"next_offset": await run_in_threadpool(append)}


@worker_router.post("/finish", operation_id="finish_attempt")
def finish(services: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: FinishRecord) -> dict[str, int]:
    """The attempt's last word."""
    _ingest(services, aid).finish(body)
    services.failpoint("finish.after-commit")
    services.notify_reconciler()
    return {"accepted": 1}


@router.get("/logs", operation_id="get_log", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_log(
    services: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: str,
    rank: Rank = "0",
    attempt: AttemptNumber = None,
    tail: Annotated[int | None, Query(ge=0, le=100_000, description="Only so many last lines.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**62, description="From this byte on.")] = 0,
) -> Response:
    """One rank's log as text. `X-Trainyard-Next-Offset` is where to go on."""
    if tail is not None and offset:
        raise InvalidRequestError("give either `tail` or `offset`", param="tail")
    start, data = read_log(
        services.database, job_id, rank, attempt=attempt, tail=tail, offset=offset, limit=LOG_ANSWER, now=now
    )
    headers = {"X-Trainyard-Offset": str(start), "X-Trainyard-Next-Offset": str(start + len(data))}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)
