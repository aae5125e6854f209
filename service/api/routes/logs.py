"""The routes that read logs and search in them."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from service.api.dependencies import AppStateDep, AttemptNumberQuery, JobId, NowDep, QueryTimestamp, UserDep
from service.api.json_body import SlotRoute
from service.api.openapi import described_headers
from service.core.errors import InvalidRequestError
from service.logs.patterns import MAX_TEXT, compile_pattern
from service.logs.search import LogSearch, Order, search_log
from service.logs.service import find_position, read_log
from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.validation_messages import RANK_PATTERN
from trainyard.contract.wire.logs import LogLevel, LogLines, LogPosition

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["logs"], route_class=SlotRoute)

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
MAX_OFFSET = 2**62
Rank = Annotated[str, Query(pattern=RANK_PATTERN, description="`0`, `1`, ... or `launch`.", examples=["0"])]


_LOG: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/plain": {}},
        "headers": described_headers(
            {
                "X-Trainyard-Offset": "Offset of this text in the log, in bytes.",
                "X-Trainyard-Next-Offset": "Offset to continue at.",
            }
        ),
    }
}


@router.get("/logs", operation_id="get_log", response_class=Response, responses=_LOG)
def get_log(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    rank: Rank = "0",
    attempt: AttemptNumberQuery = None,
    tail: Annotated[
        int | None, Query(ge=0, le=100_000, description="Only this many lines from the end.", examples=[50])
    ] = None,
    before: Annotated[
        int | None, Query(ge=0, le=MAX_OFFSET, description="With `tail`: lines before this byte.")
    ] = None,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET, description="Start at this byte.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_RESPONSE_BYTES, description="Bytes.")] = MAX_RESPONSE_BYTES,
) -> Response:
    """Return the log of a rank as text. To continue, send `X-Trainyard-Next-Offset` as `offset`; to read backwards,
    `X-Trainyard-Offset` as `before` together with `tail`. An offset never changes, so it names a line for good:
    `/jobs/<id>?line=<offset>` opens the page there."""
    if tail is not None and offset:
        raise InvalidRequestError("give either `tail` or `offset`", param="tail")
    if before is not None and tail is None:
        raise InvalidRequestError("give `tail` too: the number of lines before this byte", param="before")
    start, data = read_log(
        app_state.database, job_id, rank, attempt=attempt, tail=tail, before=before, offset=offset, limit=limit, now=now
    )
    headers = {"X-Trainyard-Offset": str(start), "X-Trainyard-Next-Offset": str(start + len(data))}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/logs/search", operation_id="search_log")
def search_logs(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    rank: Rank = "0",
    attempt: AttemptNumberQuery = None,
    text: Annotated[
        str | None, Query(max_length=MAX_TEXT, description="A part of the lines.", examples=["loss"])
    ] = None,
    regex: Annotated[bool, Query(description="`text` is a regular expression, in the syntax of RE2.")] = False,
    case_sensitive: Annotated[bool, Query(description="Whether upper and lower case differ.")] = False,
    level: Annotated[LogLevel | None, Query(description="`error`: only errors; `warning`: both.")] = None,
    offset: Annotated[
        int | None, Query(ge=0, le=MAX_OFFSET, description="Begin at this byte; with `order=desc`, end before it.")
    ] = None,
    order: Annotated[Order, Query(description="`desc`: the last matching lines first.")] = "asc",
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of lines.")] = 100,
) -> LogLines:
    """Search the log of a rank, whatever its size. A request searches for about a second at most: continue with
    `next_offset` as `offset` while `has_more` is true. A last line without its end may be returned again. The time of a
    regular expression is linear in the size of the log."""
    pattern = compile_pattern(text, regex=regex, case_sensitive=case_sensitive, level=level)
    search = LogSearch(pattern, offset, order, limit)
    return search_log(app_state.database, job_id, rank, search, attempt=attempt, now=now)


@router.get("/logs/position", operation_id="find_log_position")
def find_log_position(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    rank: Rank = "0",
    attempt: AttemptNumberQuery = None,
    time: Annotated[QueryTimestamp | None, Query(description="A time, with its zone.")] = None,
    step: Annotated[
        int | None, Query(ge=0, le=MAX_SAFE_INT, description="A step of the training.", examples=[1])
    ] = None,
) -> LogPosition:
    """Return the offset that the log of a rank had reached at a time, or when a step was done. A line is received up to
    a few seconds after it is written, so lines of that time follow the offset. Chunks that an older release received
    have no time."""
    return find_position(app_state.database, job_id, rank, attempt=attempt, time=time, step=step, now=now)
