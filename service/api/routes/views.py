"""Routes of saved views of the runs table, and of the keys that its queries can use."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from service.api.dependencies import AppStateDep, EditorDep, NowDep, UserDep, window_of
from service.api.json_body import JsonRoute
from service.db.paging import PageRequest
from service.jobs.schemas import page_of
from service.jobs.table.key_list import list_keys
from service.views import service as views
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.views import JobKeyResource, ViewRequest, ViewResource

router = APIRouter(prefix="/v1/views", tags=["views"], route_class=JsonRoute)
keys_router = APIRouter(prefix="/v1/job-keys", tags=["views"], route_class=JsonRoute)

_PATTERN = r"^view_[0-9a-z]{26}$"
ViewId = Annotated[str, Path(pattern=_PATTERN, description="Id of the saved view: `view_...`.")]
ViewWindowDep = Annotated[PageRequest, Depends(window_of(_PATTERN))]


@keys_router.get("", operation_id="list_job_keys")
def keys(app_state: AppStateDep, _user: UserDep) -> Page[JobKeyResource]:
    """List the keys that `where`, `sort` and `columns` of `GET /v1/jobs` can name, at most 5,000: for completion."""
    rows, has_more = list_keys(app_state.database)
    return page_of(rows, has_more, lambda row: row, lambda row: row.key)


@router.get("", operation_id="list_views")
def list_all(app_state: AppStateDep, user: UserDep, window: ViewWindowDep) -> Page[ViewResource]:
    """List your saved views and other users' shared views."""
    rows, has_more = views.list_views(app_state.database, user, window)
    return page_of(rows, has_more, lambda row: row, lambda row: row.id)


@router.post("", status_code=201, operation_id="create_view")
def create(app_state: AppStateDep, user: EditorDep, now: NowDep, body: ViewRequest) -> ViewResource:
    """Save a view of the runs table under a name of yours that is not in use."""
    return views.create(app_state.database, user, body, now)


@router.put("/{view_id}", operation_id="replace_view")
def replace(app_state: AppStateDep, user: EditorDep, now: NowDep, view_id: ViewId, body: ViewRequest) -> ViewResource:
    """Replace a saved view, name included."""
    return views.replace(app_state.database, user, view_id, body, now)


@router.delete("/{view_id}", status_code=204, operation_id="delete_view")
def delete(app_state: AppStateDep, user: EditorDep, view_id: ViewId) -> None:
    """Delete a saved view."""
    views.delete(app_state.database, user, view_id)
