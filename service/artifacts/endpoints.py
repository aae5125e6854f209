"""The routes of a job's artifacts: list and download."""

import os
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from service.artifacts.files import Span, list_artifacts, open_below, read_span, span_of
from service.dependencies import NowDep, PersonDep, ServicesDep
from service.errors import NotFoundError
from service.jobs.repository import JobRepository
from trainyard.contract.resources import ArtifactResource, Page

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])


@router.get("", operation_id="list_artifacts")
def list_all(
    services: ServicesDep,
    _person: PersonDep,
    now: NowDep,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
    after: Annotated[str | None, Query(max_length=4096, description="The `last_id` of the page before.")] = None,
) -> Page[ArtifactResource]:
    """Files that the job left beside its weights, by path."""
    with services.database.read() as session:
        JobRepository(session, now).get(job_id)
    rest = [found for found in list_artifacts(services.run(job_id).artifacts) if after is None or found.path > after]
    data = rest[:limit]
    first, last = (data[0].path, data[-1].path) if data else (None, None)
    return Page(data=data, first_id=first, last_id=last, has_more=len(rest) > limit)


@router.get(
    "/{path:path}",
    operation_id="download_artifact",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}, 206: {"description": "The range asked for."}},
)
def download(
    services: ServicesDep,
    _person: PersonDep,
    now: NowDep,
    job_id: str,
    path: str,
    range: Annotated[str | None, Header()] = None,
) -> Response:
    """One file, or one range of its bytes."""
    with services.database.read() as session:
        JobRepository(session, now).get(job_id)
    handle = open_below(services.run(job_id).artifacts, path)
    if handle is None:
        raise NotFoundError(f"the job has no artifact {path!r}", code="artifact_not_found", param="path")
    size = os.fstat(handle).st_size
    span = span_of(range, size) if size else Span(0, 0, 0)
    if span is None:
        os.close(handle)
        return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    headers = {"Content-Length": str(span.end - span.start), "Accept-Ranges": "bytes"}
    partial = (span.start, span.end) != (0, size)
    if partial:
        headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{size}"
    return StreamingResponse(
        read_span(handle, span),
        status_code=206 if partial else 200,
        headers=headers,
        media_type="application/octet-stream",
    )
