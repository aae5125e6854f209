"""Routes of MLflow's REST API, as far as its client reads.

MLflow documents them; they are not in the OpenAPI document.
"""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.dependencies import AppStateDep, LenientUserDep, NowDep
from service.api.file_responses import ConditionsDep, file_response
from service.api.json_body import JsonRoute, SlotRoute
from service.api.routes.metrics import CurveRoute
from service.core.errors import NotFoundError
from service.jobs.repository import JobRepository
from service.plugins.mlflow import service
from service.plugins.mlflow.artifacts import list_folder, stored_path
from service.plugins.mlflow.errors import UNKNOWN_ENDPOINT
from service.plugins.mlflow.history import MAX_POINTS, read_history
from trainyard.contract.mlflow_filter import MAX_FILTER

_API = "/mlflow/api/2.0"
_VERSION = "3.0.0"
"""The version of MLflow's server whose answers these are, for programs that ask before they choose calls."""
_MAX_EXPERIMENTS = 5000

router = APIRouter(include_in_schema=False, route_class=JsonRoute)
history_router = APIRouter(include_in_schema=False, route_class=CurveRoute)
"""Histories are as costly as curves."""
fallback_router = APIRouter(include_in_schema=False, route_class=SlotRoute)
"""All other paths; it comes after the others."""

Id = Annotated[str, Query(max_length=64)]
Token = Annotated[str, Query(max_length=80)]


class _ExperimentSearch(BaseModel):
    """The body of a search for experiments. Fields of other versions of the client are ignored."""

    max_results: Annotated[int, Field(ge=1)] = 200
    filter: Annotated[str, Field(max_length=MAX_FILTER)] = ""
    page_token: Annotated[str, Field(max_length=80)] = ""
    view_type: Annotated[str, Field(max_length=40)] = ""


class _RunSearch(BaseModel):
    """The body of a search for runs."""

    experiment_ids: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=_MAX_EXPERIMENTS)] = []
    filter: Annotated[str, Field(max_length=MAX_FILTER)] = ""
    run_view_type: Annotated[str, Field(max_length=40)] = ""
    max_results: Annotated[int, Field(ge=1)] = service.MAX_RUNS
    order_by: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=20)] = []
    page_token: Annotated[str, Field(max_length=80)] = ""


_DELETED = "DELETED_ONLY"
_MAX_EXPERIMENTS_LISTED = 1000


@router.post(f"{_API}/mlflow/experiments/search", operation_id="search_mlflow_experiments")
def search_experiments(app_state: AppStateDep, _user: LenientUserDep, body: _ExperimentSearch) -> Response:
    """Search experiments: the default experiment, and the sweeps."""
    if body.view_type == _DELETED:
        return JSONResponse({"experiments": []})
    limit = min(body.max_results, _MAX_EXPERIMENTS_LISTED)
    return JSONResponse(service.search_experiments(app_state.database, body.filter, limit, body.page_token))


@router.get(f"{_API}/mlflow/experiments/get", operation_id="get_mlflow_experiment")
def get_experiment(app_state: AppStateDep, _user: LenientUserDep, experiment_id: Id) -> Response:
    """Get an experiment by id."""
    return JSONResponse(service.read_experiment(app_state.database, experiment_id))


@router.get(f"{_API}/mlflow/experiments/get-by-name", operation_id="find_mlflow_experiment")
def find_experiment(
    app_state: AppStateDep, _user: LenientUserDep, experiment_name: Annotated[str, Query(max_length=500)]
) -> Response:
    """Get an experiment by name."""
    return JSONResponse(service.find_experiment(app_state.database, experiment_name))


@router.post(f"{_API}/mlflow/runs/search", operation_id="search_mlflow_runs")
def search_runs(app_state: AppStateDep, _user: LenientUserDep, body: _RunSearch) -> Response:
    """Search runs."""
    if body.run_view_type == _DELETED:
        return JSONResponse({"runs": []})
    search = service.RunSearch(
        experiment_ids=body.experiment_ids,
        filter=body.filter,
        order_by=body.order_by,
        max_results=min(body.max_results, service.MAX_RUNS),
        page_token=body.page_token,
    )
    return JSONResponse(service.search_runs(app_state.database, search))


@router.get(f"{_API}/mlflow/runs/get", operation_id="get_mlflow_run")
def get_run(app_state: AppStateDep, _user: LenientUserDep, now: NowDep, run_id: Id = "", run_uuid: Id = "") -> Response:
    """Get a run, whose id is the job's."""
    return JSONResponse(service.read_run(app_state.database, run_id or run_uuid, now))


@history_router.get(f"{_API}/mlflow/metrics/get-history", operation_id="get_mlflow_history")
def get_history(
    app_state: AppStateDep,
    _user: LenientUserDep,
    now: NowDep,
    metric_key: Annotated[str, Query(max_length=4000)],
    run_id: Id = "",
    run_uuid: Id = "",
    max_results: Annotated[int, Query(ge=1)] = MAX_POINTS,
    page_token: Token = "",
) -> Response:
    """Get the points of a metric."""
    limit = min(max_results, MAX_POINTS)
    return JSONResponse(read_history(app_state.database, run_id or run_uuid, metric_key, limit, page_token, now))


@router.post(f"{_API}/mlflow/logged-models/search", operation_id="search_mlflow_models")
def search_models(_user: LenientUserDep) -> Response:
    """Return no models: the client searches them when it lists a folder of artifacts."""
    return JSONResponse({"models": []})


@router.get(f"{_API}/mlflow-artifacts/artifacts", operation_id="list_mlflow_artifacts")
def list_artifacts(
    app_state: AppStateDep, _user: LenientUserDep, now: NowDep, path: Annotated[str, Query(max_length=2000)]
) -> Response:
    """List a folder of artifacts; the path begins with the run's id."""
    run_id, _, folder = path.strip("/").partition("/")
    with app_state.database.read() as session:
        files = app_state.files_of(JobRepository(session, now).get(run_id))
    return JSONResponse(list_folder(files, app_state.run_layout(run_id).artifacts, folder))


@router.get(f"{_API}/mlflow-artifacts/artifacts/{{job_id}}/{{path:file}}", operation_id="download_mlflow_artifact")
def download_artifact(
    app_state: AppStateDep, _user: LenientUserDep, now: NowDep, job_id: str, path: str, conditions: ConditionsDep
) -> Response:
    """Download an artifact."""
    with app_state.database.read() as session:
        files = app_state.files_of(JobRepository(session, now).get(job_id))
    root = app_state.run_layout(job_id).artifacts
    return file_response(files, root, stored_path(files, root, path), conditions, code="artifact_not_found")


@router.get("/mlflow/health", operation_id="get_mlflow_health")
def health(_user: LenientUserDep) -> Response:
    """Answer as MLflow's server does."""
    return PlainTextResponse("OK")


@router.get("/mlflow/version", operation_id="get_mlflow_version")
def version(_user: LenientUserDep) -> Response:
    """Get the version of MLflow's server that these routes stand for."""
    return PlainTextResponse(_VERSION)


def refuse(_user: LenientUserDep, path: str) -> Response:
    """Refuse unsupported requests, such as every change."""
    message = (
        f"Trainyard does not support {path[:200]!r} here: this address only reads experiments, runs, metrics and "
        "artifacts. Programs log from within their jobs, where MLFLOW_TRACKING_URI is already set"
    )
    raise NotFoundError(message, code=UNKNOWN_ENDPOINT)


for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    fallback_router.add_api_route(
        "/mlflow/{path:path}", refuse, methods=[_method], operation_id=f"refuse_mlflow_{_method.lower()}"
    )
