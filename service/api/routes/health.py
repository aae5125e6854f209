"""Liveness, readiness with each dependency by name, Prometheus, and the route behind `trainyard doctor`."""

import os
import shutil
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from service.api.dependencies import AdminDep, AppState, AppStateDep
from service.api.json_body import SlotRoute
from service.api.plugin import installed
from service.cluster.orphans import OrphanRepository
from service.cluster.repository import ClusterRepository, NodeFaultRepository
from service.core.errors import ServiceError
from service.diagnostics.checks import run_checks
from service.jobs.repository import JobRepository
from service.specs.preflight import STALE
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.diagnostics import DiagnosticsReport, Liveness, Readiness

_FULL_BYTES = 1024 * 1024
"""With less free space, a write of the database or of an upload may fail."""
NOT_POLLED = "not polled yet"

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "A dependency is unavailable; the body names it."}
}


router = APIRouter(tags=["health"])
"""Routes without authentication; they return numbers and names of dependencies, nothing about single jobs."""
doctor_router = APIRouter(prefix="/v1/doctor", tags=["health"], route_class=SlotRoute)


@router.get("/livez", operation_id="livez")
async def livez() -> Liveness:
    """Check that the process responds. Runs on the event loop, so that it does not wait for a thread."""
    return Liveness()


@router.get("/readyz", operation_id="readyz", response_model=Readiness, responses=_NOT_READY)
def readyz(app_state: AppStateDep) -> Any:
    """Check every dependency. `degraded` means that the API works but the scheduler does not answer."""
    checks = {"database": _database(app_state), "runs_dir": _runs_dir(app_state), "disk": _disk(app_state)}
    ready = all(state == "ok" for state in checks.values())
    checks["scheduler"] = _scheduler(app_state) if checks["database"] == "ok" else "unknown without the database"
    served = "ok" if checks["scheduler"] in ("ok", NOT_POLLED) else "degraded"
    body: dict[str, Any] = {"status": served if ready else "unavailable", "checks": checks}
    notes = _notes(app_state)
    if checks["database"] == "ok" and (problem := _secrets_key(app_state)) is not None:
        notes.append(f"users' secrets cannot be read: {problem}")
    if notes:
        body["notes"] = notes
    return JSONResponse(body, status_code=200 if ready else 503)


@router.get("/metrics", operation_id="prometheus", response_class=Response)
def prometheus(app_state: AppStateDep) -> Response:
    """Get the metrics in Prometheus' text format; they are at most a second old."""
    body = app_state.metrics_page.get(app_state.clock(), lambda: _render_metrics(app_state))
    return Response(body, media_type=CONTENT_TYPE_LATEST)


def _render_metrics(app_state: AppState) -> bytes:
    now, backend = app_state.clock(), app_state.settings.backend
    with app_state.database.read() as session:
        jobs = JobRepository(session, now).count_by_status()
        unanswered = JobRepository(session, now).count_unconfirmed()
        cluster = ClusterRepository(session).resource(backend, now)
        orphans = OrphanRepository(session).counts()
        excluded = NodeFaultRepository(session, now).exclusions(backend)
    failing = {"excluded": len(excluded.nodes), "in_use": len(excluded.retained)}
    return app_state.metrics.render(jobs, unanswered, cluster.age_seconds, orphans, failing)


def _database(app_state: AppState) -> str:
    try:
        app_state.database_check.get(app_state.clock(), app_state.database.check_writable)
    except ServiceError as error:
        return error.message
    return "ok"


def _scheduler(app_state: AppState) -> str:
    """Return the state of the scheduler as of the reconciler's last poll; a route never calls the scheduler."""
    backend, now = app_state.settings.backend, app_state.clock()
    with app_state.database.read() as session:
        cluster = ClusterRepository(session).resource(backend, now)
    if cluster.error:
        return f"does not answer: {cluster.error}"
    if cluster.age_seconds is None:
        return NOT_POLLED
    if cluster.age_seconds > STALE.total_seconds():
        return f"last polled {cluster.age_seconds:.0f} s ago; is a reconciler running?"
    return "ok"


def _notes(app_state: AppState) -> list[str]:
    """Return warnings about resources that are running low."""
    settings = app_state.settings
    try:
        free = shutil.disk_usage(settings.runs).free
    except OSError:
        return []
    if free >= settings.low_disk_bytes:
        return []
    limit = format_size(settings.low_disk_bytes)
    return [f"only {format_size(free)} free for runs (TRAINYARD_LOW_DISK_GB is {limit})"]


def _secrets_key(app_state: AppState) -> str | None:
    try:
        return app_state.secrets.check_key()
    except ServiceError as error:
        return error.message


def _disk(app_state: AppState) -> str:
    """Return the first folder of the service whose filesystem is full."""
    for folder in (app_state.settings.state, app_state.settings.runs):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            return f"{folder} cannot be read: {error.strerror}"
        if free < _FULL_BYTES:
            return f"the filesystem of {folder} is full: {free} bytes are free"
    return "ok"


def _runs_dir(app_state: AppState) -> str:
    runs = app_state.settings.runs
    return "ok" if os.access(runs, os.W_OK | os.X_OK) else f"{runs} is not a writable directory"


@doctor_router.get("", operation_id="get_doctor")
def get_doctor(request: Request, app_state: AppStateDep, _admin: AdminDep) -> DiagnosticsReport:
    """Check the installation from the machine of the service; may take seconds. Does not call the scheduler, whose
    state is in `/v1/cluster`."""
    more = [check for plugin in installed(request.scope) for check in plugin.checks]
    return DiagnosticsReport(findings=list(run_checks(app_state.settings, more, query_scheduler=False)))
