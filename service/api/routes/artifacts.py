"""Routes of artifacts: list and download."""

from datetime import datetime

from fastapi import APIRouter
from starlette.responses import Response

from service.api.dependencies import AppState, AppStateDep, JobId, NowDep, UserDep
from service.api.file_responses import AfterFile, ConditionsDep, FileLimit, FilePath, download_route, file_response
from service.api.json_body import SlotRoute
from service.checkpoints.program_output import ProgramOutput
from service.core.untrusted_files import UntrustedFiles
from service.jobs.repository import JobRepository
from service.jobs.schemas import page_of
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.files import ArtifactResource, FileResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"], route_class=SlotRoute)


@router.get("", operation_id="list_artifacts")
def list_all(
    app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, limit: FileLimit = 100, after: AfterFile = None
) -> Page[ArtifactResource]:
    """List the files that the job wrote beside its checkpoints and export, by path."""
    files, run, output = _folders(app_state, now, job_id)
    listed, has_more = app_state.file_listings.page(
        files, run.artifacts, hidden=False, limit=limit, after=after, output=output
    )
    return page_of(listed, has_more, _artifact, lambda file: file.path)


def _artifact(file: FileResource) -> ArtifactResource:
    return ArtifactResource(**file.model_dump(exclude={"object"}))


@download_route(router, "/{path:file}", "artifact")
def download(
    app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, path: FilePath, conditions: ConditionsDep
) -> Response:
    """Download a file, or a range of its bytes."""
    files, run, output = _folders(app_state, now, job_id)
    below = output.path_below(path) if output else None
    if output and below:
        return file_response(files, output.folder, below, conditions, code="artifact_not_found")
    return file_response(files, run.artifacts, path, conditions, code="artifact_not_found")


def _folders(app_state: AppState, now: datetime, job_id: str) -> tuple[UntrustedFiles, RunLayout, ProgramOutput | None]:
    """Return access to the job's files, its folder, and its program's output in the working directory."""
    with app_state.database.read() as session:
        job = JobRepository(session, now).get(job_id)
        files, spec = app_state.files_of(job), job.spec
    run = app_state.run_layout(job_id)
    return files, run, ProgramOutput.find(files, run, spec)
