"""Liveness, readiness with each dependency by name, and Prometheus."""

import os
import shutil
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from service.api.dependencies import AppState, AppStateDep
from service.cluster.repository import ClusterRepository
from service.core.errors import ServiceError
from service.jobs.repository import JobRepository
from service.specs.preflight import STALE

_FULL_BYTES = 1024 * 1024
"""With less free space, a write of the database or of an upload may fail."""
NOT_POLLED = "not polled yet"

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": dict[str, Any], "description": "A dependency is unavailable; the body names it."}
}


router = APIRouter(tags=["health"])
"""Routes without authentication; they return numbers and names of dependencies, nothing about single jobs."""


@router.get("/livez", operation_id="livez")
async def livez() -> dict[str, str]:
    """Check that the process responds. Runs on the event loop, so that it does not wait for a thread."""
    return {"status": "ok"}


@router.get("/readyz", operation_id="readyz", responses=_NOT_READY)
def readyz(services: AppStateDep) -> Any:
    """Check every dependency. `degraded` means that the API works but the scheduler does not answer."""
    checks = {"database": _database(services), "runs_dir": _runs_dir(services), "disk": _disk(services)}
    ready = all(state == "ok" for state in checks.values())
    checks["scheduler"] = _scheduler(services) if checks["database"] == "ok" else "unknown without the database"
    served = "ok" if checks["scheduler"] in ("ok", NOT_POLLED) else "degraded"
    body: dict[str, Any] = {"status": served if ready else "unavailable", "checks": checks}
    if notes := _notes(services):
        body["notes"] = notes
    return JSONResponse(body, status_code=200 if ready else 503)


@router.get("/metrics", operation_id="prometheus", response_class=Response)
def prometheus(services: AppStateDep) -> Response:
    """Get the metrics in Prometheus' text format; they are at most a second old."""
    body = services.metrics_page.get(services.clock(), lambda: _render_metrics(services))
    return Response(body, media_type=CONTENT_TYPE_LATEST)


def _render_metrics(services: AppState) -> bytes:
    now, backend = services.clock(), services.settings.backend
    with services.database.read() as session:
        jobs = JobRepository(session, now).count_by_status()
        unanswered = JobRepository(session, now).count_unconfirmed()
        cluster = ClusterRepository(session).resource(backend, now)
    return services.metrics.render(jobs, unanswered, cluster.age_seconds)


def _database(services: AppState) -> str:
    try:
        services.database.check_writable()
    except ServiceError as error:
        return error.message
    return "ok"


def _scheduler(services: AppState) -> str:
    """Return the state of the scheduler as of the reconciler's last poll; a route never calls the scheduler."""
    backend, now = services.settings.backend, services.clock()
    with services.database.read() as session:
        cluster = ClusterRepository(session).resource(backend, now)
    if cluster.error:
        return f"does not answer: {cluster.error}"
    if cluster.age_seconds is None:
        return NOT_POLLED
    if cluster.age_seconds > STALE.total_seconds():
        return f"last polled {cluster.age_seconds:.0f} s ago; is a reconciler running?"
    return "ok"


def _notes(services: AppState) -> list[str]:
    """Return warnings about resources that are running low."""
    settings = services.settings
    try:
        free = shutil.disk_usage(settings.runs).free
    except OSError:
        return []
    if free >= settings.low_disk_bytes:
        return []
    return [f"only {free / 1e9:.1f} GB free for runs (TRAINYARD_LOW_DISK_GB is {settings.low_disk_gb:g})"]


def _disk(services: AppState) -> str:
    """Return the first folder of the service whose filesystem is full."""
    for folder in (services.settings.state, services.settings.runs):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            return f"{folder} cannot be read: {error.strerror}"
        if free < _FULL_BYTES:
            return f"the filesystem of {folder} is full: {free} bytes are free"
    return "ok"


def _runs_dir(services: AppState) -> str:
    runs = services.settings.runs
    return "ok" if os.access(runs, os.W_OK | os.X_OK) else f"{runs} is not a writable directory"
