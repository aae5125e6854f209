"""Routes of orphans, for administrators."""

from typing import Annotated

from fastapi import APIRouter, Path

from service.api.dependencies import AdminDep, AppStateDep
from service.api.json_body import JsonRoute
from service.cluster import orphans
from service.jobs.schemas import page_of
from trainyard.contract.wire.orphans import OrphanRequest, OrphanResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/orphans", tags=["cluster"], route_class=JsonRoute)

OrphanId = Annotated[
    str,
    Path(
        pattern=r"^[a-z0-9_-]{1,64}$",
        description="Id of the orphan: a job's id, or the name of an attempt in the scheduler.",
    ),
]


@router.get("", operation_id="list_orphans")
def list_all(app_state: AppStateDep, _admin: AdminDep) -> Page[OrphanResource]:
    """List entries of the scheduler's queue and run directories that no job names, such as after a restore."""
    return page_of(orphans.list_orphans(app_state.database), False, lambda row: row, lambda orphan: orphan.id)


@router.post("/{orphan_id}/resolve", status_code=202, operation_id="resolve_orphan")
def resolve(app_state: AppStateDep, admin: AdminDep, orphan_id: OrphanId, body: OrphanRequest) -> OrphanResource:
    """Request that an orphan is cancelled in the scheduler, or adopted as a job of the caller, or of another user."""
    orphan = orphans.request(app_state.database, orphan_id, body, admin.name, app_state.clock())
    app_state.notify_reconciler()
    return orphan
