"""Routes of artifacts: list and download."""

from fastapi import APIRouter
from starlette.responses import Response

from service.api.dependencies import AppStateDep, JobId, NowDep, UserDep
from service.api.file_responses import AfterFile, ConditionsDep, FileLimit, FilePath, download_route, file_response
from service.api.json_body import SlotRoute
from service.jobs.repository import JobRepository
from service.jobs.schemas import page_of
from trainyard.contract.wire.files import ArtifactResource, FileResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"], route_class=SlotRoute)


@router.get("", operation_id="list_artifacts")
def list_all(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    limit: FileLimit = 100,
    after: AfterFile = None,
) -> Page[ArtifactResource]:
    """List the files that the job wrote beside its checkpoints and export, by path."""
    with app_state.database.read() as session:
        files = app_state.files_of(JobRepository(session, now).get(job_id))
    root = app_state.run_layout(job_id).artifacts
    listed, has_more = app_state.file_listings.page(files, root, hidden=False, limit=limit, after=after)
    return page_of(listed, has_more, _artifact, lambda file: file.path)


def _artifact(file: FileResource) -> ArtifactResource:
    return ArtifactResource(**file.model_dump(exclude={"object"}))


@download_route(router, "/{path:file}", "artifact")
def download(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    path: FilePath,
    conditions: ConditionsDep,
) -> Response:
    """Download a file, or a range of its bytes."""
    with app_state.database.read() as session:
        files = app_state.files_of(JobRepository(session, now).get(job_id))
    return file_response(files, app_state.run_layout(job_id).artifacts, path, conditions, code="artifact_not_found")
