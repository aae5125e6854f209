"""The routes of a job's artifacts: list and download."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from service.api.dependencies import NowDep, ServicesDep, UserDep
from service.checkpoints.conditions import WantedDep
from service.checkpoints.downloads import downloads, file_response
from service.checkpoints.safe_files import list_artifacts
from service.jobs.repository import JobRepository
from service.jobs.schemas import page_of
from trainyard.contract.wire.files import ArtifactResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])


@router.get("", operation_id="list_artifacts")
def list_all(
    services: ServicesDep,
    _user: UserDep,
    now: NowDep,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
    after: Annotated[str | None, Query(max_length=4096, description="The `last_id` of the page before.")] = None,
) -> Page[ArtifactResource]:
    """Files that the job left beside its weights, by path."""
    with services.database.read() as session:
        JobRepository(session, now).get(job_id)
    rest = [found for found in list_artifacts(services.run(job_id).artifacts) if after is None or found.path > after]
    return page_of(rest[:limit], len(rest) > limit, lambda file: file, lambda file: file.path)


@downloads(router, "/{path:path}", "artifact")
def download(
    services: ServicesDep,
    _user: UserDep,
    now: NowDep,
    job_id: str,
    path: str,
    wanted: WantedDep,
) -> Response:
    """One file, or one range of its bytes."""
    with services.database.read() as session:
        JobRepository(session, now).get(job_id)
    return file_response(services.run(job_id).artifacts, path, wanted, code="artifact_not_found")
