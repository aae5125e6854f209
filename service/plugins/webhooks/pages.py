"""The page of webhooks, for administrators."""

from typing import get_args

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppStateDep
from service.api.json_body import SlotRoute
from service.db.paging import PageRequest
from service.plugins.webhooks.routes import list_all
from service.web.dependencies import PagesDep, VisitorDep
from service.web.pages.admin import MAX_ROWS, administrators_only, render_admin_page
from trainyard.contract.wire.jobs import JobStatus

PATH = "/admin/webhooks"

router = APIRouter(include_in_schema=False, route_class=SlotRoute)


@router.get(PATH)
def show_webhooks(app_state: AppStateDep, pages: PagesDep, visitor: VisitorDep) -> HTMLResponse:
    """Return the webhooks of all users; a script reads their deliveries."""
    if visitor.user.role != "admin":
        return administrators_only(pages, visitor)
    page = list_all(app_state, visitor.user, PageRequest(limit=MAX_ROWS, descending=True))
    return render_admin_page(pages, "admin_webhooks.html", visitor, webhooks=page.data, statuses=get_args(JobStatus))
