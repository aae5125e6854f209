"""Routes of checkpoints and exports: list, get, files, archive and delete."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParam
from starlette.responses import Response

from service.api.dependencies import AppState, AppStateDep, CheckpointWindowDep, EditorDep, JobId, NowDep, UserDep
from service.api.file_responses import (
    TAR_RESPONSES,
    AfterFile,
    ConditionsDep,
    FileLimit,
    FilePath,
    HeadDep,
    archive_response,
    download_route,
    file_response,
    require_plain,
)
from service.api.json_body import SlotRoute
from service.checkpoints.ranking import best_criterion, best_step
from service.core.untrusted_files import UntrustedFiles
from service.db.models import Checkpoint, Job
from service.jobs import service as job_service
from service.jobs.repository import JobRepository
from service.jobs.schemas import checkpoint_resource, page_of
from trainyard.contract.wire.files import CheckpointResource, FileResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["checkpoints"], route_class=SlotRoute)

CheckpointId = Annotated[
    str, PathParam(pattern=r"^ckpt_[0-9a-z]{26}$", description="Id of the checkpoint: `ckpt_...`.")
]


@router.get("/checkpoints", operation_id="list_checkpoints")
def list_all(
    app_state: AppStateDep, _user: UserDep, now: NowDep, window: CheckpointWindowDep, job_id: JobId
) -> Page[CheckpointResource]:
    """List the complete checkpoints by step, oldest first; the latest and the best are marked."""
    with app_state.database.read() as session:
        jobs = JobRepository(session, now)
        job = jobs.get(job_id)
        rows, has_more = jobs.list_checkpoints(job, window)
        convert = _converter(app_state, jobs, job)
    return page_of(rows, has_more, convert, lambda checkpoint: checkpoint.id)


@router.get("/checkpoints/{checkpoint_id}", operation_id="get_checkpoint")
def get(
    app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, checkpoint_id: CheckpointId
) -> CheckpointResource:
    """Get a checkpoint. Its digest is the digest of `files/manifest.json`, which has the digests of the other files."""
    with app_state.database.read() as session:
        jobs = JobRepository(session, now)
        job = jobs.get(job_id)
        row = jobs.get_checkpoint(job, checkpoint_id)
        return _converter(app_state, jobs, job)(row)


@router.delete("/checkpoints/{checkpoint_id}", status_code=204, operation_id="delete_checkpoint")
def delete(app_state: AppStateDep, user: EditorDep, now: NowDep, job_id: JobId, checkpoint_id: CheckpointId) -> None:
    """Delete a checkpoint; its files are removed soon after. An active job's latest checkpoint cannot be deleted."""
    job_service.delete_checkpoint(app_state.database, user, job_id, checkpoint_id, now)
    app_state.notify_cleanup()


@router.get("/checkpoints/{checkpoint_id}/files", operation_id="list_checkpoint_files")
def list_checkpoint_files(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    checkpoint_id: CheckpointId,
    limit: FileLimit = 100,
    after: AfterFile = None,
) -> Page[FileResource]:
    """List the files of a checkpoint, by path."""
    files, folder = _folder(app_state, now, job_id, checkpoint_id)
    return _list_files(app_state, files, folder, limit, after)


@download_route(router, "/checkpoints/{checkpoint_id}/files/{path:file}", "checkpoint_file")
def download_checkpoint_file(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    checkpoint_id: CheckpointId,
    path: FilePath,
    conditions: ConditionsDep,
) -> Response:
    """Download a file of a checkpoint, or a range of its bytes."""
    files, folder = _folder(app_state, now, job_id, checkpoint_id)
    return file_response(files, folder, require_plain(path), conditions)


@download_route(router, "/checkpoints/{checkpoint_id}/archive", "checkpoint", TAR_RESPONSES)
def archive(
    app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, checkpoint_id: CheckpointId, head: HeadDep
) -> Response:
    """Download a checkpoint as a tar."""
    files, folder = _folder(app_state, now, job_id, checkpoint_id)
    return archive_response(files, folder, f"{job_id}-{folder.name}", head=head)


@router.get("/export/files", operation_id="list_export_files")
def list_export_files(
    app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, limit: FileLimit = 100, after: AfterFile = None
) -> Page[FileResource]:
    """List the files of the export, by path; it is empty until the job has succeeded."""
    files, folder = _export(app_state, now, job_id)
    return _list_files(app_state, files, folder, limit, after)


@download_route(router, "/export/files/{path:file}", "export_file")
def download_export_file(
    app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, path: FilePath, conditions: ConditionsDep
) -> Response:
    """Download a file of the export, or a range of its bytes."""
    files, folder = _export(app_state, now, job_id)
    return file_response(files, folder, require_plain(path), conditions)


@download_route(router, "/export/archive", "export", TAR_RESPONSES)
def export_archive(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId, head: HeadDep) -> Response:
    """Download the export as a tar."""
    files, folder = _export(app_state, now, job_id)
    return archive_response(files, folder, f"{job_id}-export", head=head)


def _converter(app_state: AppState, jobs: JobRepository, job: Job) -> Callable[[Checkpoint], CheckpointResource]:
    """Return the function that makes resources of a job's checkpoints, of which it marks the latest and the best."""
    criterion = best_criterion(job.spec["checkpoint"]["keep_best"])
    best = best_step(jobs.checkpoint_values(job, criterion.metric), criterion)
    latest = max(jobs.checkpoint_steps(job), default=None)
    run = app_state.run_layout(job.id)

    def convert(row: Checkpoint) -> CheckpointResource:
        marks = {"best": row.step == best, "latest": row.step == latest}
        return checkpoint_resource(job.id, row, run).model_copy(update=marks)

    return convert


def _folder(app_state: AppState, now: datetime, job_id: str, checkpoint_id: str) -> tuple[UntrustedFiles, Path]:
    with app_state.database.read() as session:
        jobs = JobRepository(session, now)
        job = jobs.get(job_id)
        step = jobs.get_checkpoint(job, checkpoint_id).step
        return app_state.files_of(job), app_state.run_layout(job_id).checkpoint(step).root


def _export(app_state: AppState, now: datetime, job_id: str) -> tuple[UntrustedFiles, Path]:
    with app_state.database.read() as session:
        files = app_state.files_of(JobRepository(session, now).get(job_id))
    return files, app_state.run_layout(job_id).export


def _list_files(
    app_state: AppState, files: UntrustedFiles, root: Path, limit: int, after: str | None
) -> Page[FileResource]:
    listed, has_more = app_state.file_listings.page(files, root, hidden=True, limit=limit, after=after)
    return page_of(listed, has_more, lambda file: file, lambda file: file.path)
