"""The routes of workers: claim, heartbeat, metrics, events, checkpoints, logs and exit record of an attempt."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api.dependencies import AppState, AppStateDep, AttemptId, WorkerDep, get_app_state, require_worker
from service.api.json_body import ReportRoute
from service.api.openapi import METRICS_BODY, binary_body
from service.api.routes.logs import Rank
from service.attempts.service import AttemptService
from service.core.errors import BodyTooLargeError
from service.core.thread_slots import run_in_thread_slot
from service.logs.service import LogWriter
from service.metrics.ingest.decode import decode_batch, decode_known
from trainyard.contract.wire.media import MediaReport
from trainyard.contract.wire.reports import (
    MAX_LOG_CHUNK,
    Accepted,
    AcceptedPoints,
    AppendedLog,
    CheckpointReport,
    Claim,
    ClaimGrant,
    EventsBatch,
    FinishRecord,
    Heartbeat,
    HeartbeatReply,
    ParametersReport,
)

router = APIRouter(prefix="/v1/attempts/{aid}", tags=["worker"], route_class=ReportRoute)


def _service(app_state: AppState, aid: str) -> AttemptService:
    return AttemptService(
        app_state.database, aid, app_state.clock(), app_state.metrics.ingested, app_state.secrets.values
    )


_MAX_INLINE_BYTES = 128 * 1024
"""Size of a batch that is decoded on the event loop; 1000 points have about 100 KiB."""


@router.post("/claim", operation_id="claim_attempt")
def claim(app_state: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: Claim) -> ClaimGrant:
    """Claim an attempt. Only one run can; 409 `claim_refused` for all others."""
    granted = _service(app_state, aid).claim(body)
    app_state.failpoint("claim.after-commit")
    return granted


@router.post("/heartbeat", operation_id="send_heartbeat")
def heartbeat(app_state: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: Heartbeat) -> HeartbeatReply:
    """Send a heartbeat. The reply carries stop requests and trace requests."""
    return _service(app_state, aid).heartbeat()


@router.post("/metrics", operation_id="report_metrics", response_model=AcceptedPoints, openapi_extra=METRICS_BODY)
async def metrics(request: Request, aid: AttemptId) -> Response:
    """Report points. A batch is stored as a whole or not at all; the response follows the commit. Repeats are safe."""
    app_state = await get_app_state(request)  # FastAPI's injection would cost a tenth of the request
    require_worker(request, aid)
    body = await request.body()
    known_keys = app_state.ingest_queue.known_keys
    batch = decode_known(body, known_keys) if len(body) <= _MAX_INLINE_BYTES else None
    if batch is None:
        # A large invalid batch takes 0.3 s, which must not block the event loop.
        batch = await run_in_thread_slot(decode_batch, body, known_keys)
    stored = await app_state.ingest_queue.submit(aid, batch, len(body))
    app_state.metrics.ingested("points", len(batch.rows))
    content = b'{"accepted":%d,"duplicates":%d}' % (stored.stored, stored.duplicates)
    return Response(content, media_type="application/json")


@router.post("/events", operation_id="report_events")
def events(app_state: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: EventsBatch) -> Accepted:
    """Add events to the job's history, each once."""
    return Accepted(accepted=_service(app_state, aid).events(body))


@router.post("/checkpoints", operation_id="report_checkpoint")
def checkpoints(app_state: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: CheckpointReport) -> Accepted:
    """Report a complete checkpoint and the steps whose checkpoints were deleted."""
    _service(app_state, aid).checkpoint(body)
    return Accepted(accepted=1)


@router.post("/parameters", operation_id="report_parameters")
def parameters(app_state: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: ParametersReport) -> Accepted:
    """Report parameters, tags and notes of the job. Later values replace earlier values."""
    _service(app_state, aid).parameters(body)
    return Accepted(accepted=1)


@router.post("/media", operation_id="report_media")
def media(app_state: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: MediaReport) -> Accepted:
    """Report media of the program. The last logged medium of a key, step and position stays."""
    return Accepted(accepted=_service(app_state, aid).media(body))


@router.post("/logs", operation_id="append_log", openapi_extra=binary_body("application/octet-stream"))
async def append_log(
    request: Request,
    app_state: AppStateDep,
    _worker: WorkerDep,
    aid: AttemptId,
    rank: Rank,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Offset of the first byte in the log.", examples=[0])],
) -> AppendedLog:
    """Append raw bytes to a rank's log."""
    data = await request.body()
    if len(data) > MAX_LOG_CHUNK:
        raise BodyTooLargeError(f"one append takes at most {MAX_LOG_CHUNK} bytes")
    logs = LogWriter(
        app_state.database, aid, app_state.clock(), app_state.settings.log_limit, app_state.metrics.ingested
    )
    return AppendedLog(next_offset=await run_in_thread_slot(logs.append, rank, offset, data))


@router.post("/finish", operation_id="finish_attempt")
def finish(app_state: AppStateDep, _worker: WorkerDep, aid: AttemptId, body: FinishRecord) -> Accepted:
    """Report the exit record of the attempt's last execution."""
    _service(app_state, aid).finish(body)
    app_state.failpoint("finish.after-commit")
    app_state.notify_reconciler()
    return Accepted(accepted=1)
