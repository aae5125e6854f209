"""Routes of OpenAI's API for fine-tuning, as far as its client uses them to train models.

OpenAI documents them; they are not in the OpenAPI document.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from service.api.dependencies import AppState, AppStateDep, LenientEditorDep, LenientUserDep, NowDep
from service.api.json_body import JsonRoute, SlotRoute
from service.api.query_params import metadata_filter
from service.auth.principals import Principal
from service.code.service import check_code, check_code_permission
from service.core.errors import NotFoundError
from service.db.models import Job
from service.jobs import service as job_service
from service.jobs.submission import SubmissionRequest, submit
from service.plugins.openai.errors import PREFIX
from service.plugins.openai.events import read_events
from service.plugins.openai.requests import CreateJob
from service.plugins.openai.service import FineTuneService
from service.plugins.openai.service import cancel as cancel_job
from service.specs.acceptance import AcceptedSpec
from service.specs.data_files import pin_files

_JOBS = f"{PREFIX}fine_tuning/jobs"
_MAX_PAGE = 1000

router = APIRouter(include_in_schema=False, route_class=JsonRoute)
fallback_router = APIRouter(include_in_schema=False, route_class=SlotRoute)
"""All other paths; it comes after the others."""


async def _get_fine_tunes(request: Request) -> FineTuneService:
    fine_tunes: FineTuneService = request.app.state.app_state.plugin_parts["openai"]
    return fine_tunes


FineTunesDep = Annotated[FineTuneService, Depends(_get_fine_tunes)]
Limit = Annotated[int, Query(ge=1, le=_MAX_PAGE)]
After = Annotated[str | None, Query(max_length=80)]


@router.post(_JOBS, operation_id="create_fine_tune")
def create(
    app_state: AppStateDep,
    fine_tunes: FineTunesDep,
    user: LenientEditorDep,
    body: CreateJob,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Submit a fine-tuning job, which is an ordinary job too."""
    now = app_state.clock()

    def accept(document: dict[str, Any]) -> AcceptedSpec:
        return pin_files(app_state.files, app_state.acceptance.accept(document, now, user.name))

    def submit_spec(accepted: AcceptedSpec, warnings: Sequence[str], add_rows: Callable[[Session, Job], None]) -> str:
        all_warnings = (*accepted.warnings, *warnings)
        request = SubmissionRequest(
            accepted.spec, idempotency_key, accepted.unresolved, warnings=all_warnings, add_rows=add_rows
        )
        return _submit(app_state, user, request)

    created = fine_tunes.create(user, body, accept, submit_spec, now, key=idempotency_key)
    app_state.notify_reconciler()
    return JSONResponse(created)


def _submit(app_state: AppState, user: Principal, request: SubmissionRequest) -> str:
    settings = app_state.settings
    app_state.secrets.require(user, request.spec)
    check_code(user, request.spec, settings)
    result = submit(
        app_state.database,
        user,
        request,
        run_files=app_state.run_files,
        now=app_state.clock(),
        quotas=app_state.quotas,
        run_as=settings.run_as,
    )
    return str(result.response["id"])


@router.get(_JOBS, operation_id="list_fine_tunes")
def list_jobs(
    request: Request,
    fine_tunes: FineTunesDep,
    _user: LenientUserDep,
    now: NowDep,
    after: After = None,
    limit: Limit = 20,
) -> Response:
    """List fine-tuning jobs, newest first."""
    return JSONResponse(fine_tunes.list_jobs(after, limit, metadata_filter(request), now))


@router.get(f"{_JOBS}/{{job_id}}", operation_id="get_fine_tune")
def get(fine_tunes: FineTunesDep, _user: LenientUserDep, now: NowDep, job_id: str) -> Response:
    """Get a fine-tuning job."""
    return JSONResponse(fine_tunes.read(job_id, now))


@router.post(f"{_JOBS}/{{job_id}}/cancel", operation_id="cancel_fine_tune")
def cancel(app_state: AppStateDep, fine_tunes: FineTunesDep, user: LenientEditorDep, job_id: str) -> Response:
    """Request that a job ends; its status becomes `cancelled` once nothing of it is running."""
    return _change(app_state, fine_tunes, user, job_id, cancel_job)


@router.post(f"{_JOBS}/{{job_id}}/pause", operation_id="pause_fine_tune")
def pause(app_state: AppStateDep, fine_tunes: FineTunesDep, user: LenientEditorDep, job_id: str) -> Response:
    """Request that a job writes a checkpoint and releases its GPUs."""
    return _change(app_state, fine_tunes, user, job_id, job_service.pause)


@router.post(f"{_JOBS}/{{job_id}}/resume", operation_id="resume_fine_tune")
def resume(app_state: AppStateDep, fine_tunes: FineTunesDep, user: LenientEditorDep, job_id: str) -> Response:
    """Continue a paused job from its last checkpoint."""
    return _change(app_state, fine_tunes, user, job_id, job_service.resume, runs_code=True)


def _change(
    app_state: AppState,
    fine_tunes: FineTuneService,
    user: Principal,
    job_id: str,
    action: job_service.JobAction,
    *,
    runs_code: bool = False,
) -> Response:
    check = partial(check_code_permission, user, settings=app_state.settings) if runs_code else None
    changed = fine_tunes.change(user, job_id, action, app_state.clock(), check)
    app_state.notify_reconciler()
    return JSONResponse(changed)


@router.get(f"{_JOBS}/{{job_id}}/events", operation_id="list_fine_tune_events")
def list_events(
    app_state: AppStateDep, _user: LenientUserDep, job_id: str, after: After = None, limit: Limit = 20
) -> Response:
    """List the events of a job, newest first."""
    return JSONResponse(read_events(app_state.database, job_id, after, limit))


@router.get(f"{_JOBS}/{{job_id}}/checkpoints", operation_id="list_fine_tune_checkpoints")
def list_checkpoints(
    fine_tunes: FineTunesDep, _user: LenientUserDep, job_id: str, after: After = None, limit: Limit = 10
) -> Response:
    """List the checkpoints of a job, newest first."""
    return JSONResponse(fine_tunes.checkpoints(job_id, after, limit))


@router.get(f"{PREFIX}models", operation_id="list_openai_models")
def list_models(fine_tunes: FineTunesDep, _user: LenientUserDep) -> Response:
    """List the base models and the fine-tuned models."""
    return JSONResponse(fine_tunes.list_models())


@router.get(f"{PREFIX}models/{{model:file}}", operation_id="get_openai_model")
def get_model(fine_tunes: FineTunesDep, _user: LenientUserDep, model: str) -> Response:
    """Get a model."""
    return JSONResponse(fine_tunes.model(model))


@router.delete(f"{PREFIX}models/{{model:file}}", operation_id="delete_openai_model")
def delete_model(
    app_state: AppStateDep, fine_tunes: FineTunesDep, user: LenientEditorDep, now: NowDep, model: str
) -> Response:
    """Delete a fine-tuned model and its checkpoints; the job remains."""
    deleted = fine_tunes.delete_model(user, model, now)
    app_state.notify_cleanup()
    return JSONResponse(deleted)


_INFERENCE = ("chat/completions", "completions", "responses", "embeddings")
_SERVE = (
    "Trainyard trains models and does not serve them. Write the whole model with `trainyard export JOB --merge "
    "--output FOLDER` (JOB is the id of the fine-tuning job), run `vllm serve FOLDER --served-model-name NAME` (NAME "
    "is the model that the program names), and set `base_url` of this client to that server"
)
_PARTS = (
    "upload files of up to 512 MiB with `files.create`, and larger ones with `trainyard files upload`, which an "
    "interruption does not lose"
)
_OTHER = (
    "this address has files, fine_tuning.jobs (create, retrieve, list, cancel, pause, resume, list_events, "
    "checkpoints.list) and models; docs/openai.md of Trainyard lists them"
)


def refuse(_user: LenientUserDep, path: str) -> Response:
    """Refuse unsupported requests, and name the supported alternative."""
    advice = _SERVE if path.startswith(_INFERENCE) else _PARTS if path.startswith("uploads") else _OTHER
    raise NotFoundError(f"{path[:200]!r} is not supported here: {advice}", code="unsupported_endpoint")


for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    fallback_router.add_api_route(
        f"{PREFIX}{{path:path}}", refuse, methods=[_method], operation_id=f"refuse_openai_{_method.lower()}"
    )
