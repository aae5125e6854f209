"""The pages of projects: the list, and a project with its members, its use and its views."""

from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppStateDep
from service.api.json_body import SlotRoute
from service.api.routes.projects import ProjectName, ProjectsDep
from service.db.paging import PageRequest
from service.views.service import list_of_project
from service.web.dependencies import PagesDep, VisitorDep
from trainyard.contract.base import MAX_DISPLAY_NAME
from trainyard.contract.job_query import quoted
from trainyard.contract.wire.views import ViewResource

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

PATH = "/projects"
_PAGE_SIZE = 100
_ROLES = ("viewer", "member", "manager")


@router.get(PATH)
def show_projects(
    projects: ProjectsDep,
    pages: PagesDep,
    visitor: VisitorDep,
    after: Annotated[str | None, Query(max_length=MAX_DISPLAY_NAME)] = None,
) -> HTMLResponse:
    """Return the projects that the user sees, by name, with a form to create one."""
    rows, has_more = projects.list_page(visitor.user, PageRequest(limit=_PAGE_SIZE, after=after, descending=False))
    return pages.render(
        "projects.html",
        visitor,
        section=PATH,
        project=None,
        projects=rows,
        may_create=visitor.user.role != "viewer",
        more=f"{PATH}?{urlencode({'after': rows[-1].name})}" if has_more else "",
    )


@router.get(f"{PATH}/{{project}}")
def show_project(
    projects: ProjectsDep, app_state: AppStateDep, pages: PagesDep, visitor: VisitorDep, project: ProjectName
) -> HTMLResponse:
    """Return a project; its managers change it there."""
    detail = projects.read(visitor.user, project)
    return pages.render(
        "projects.html",
        visitor,
        section=PATH,
        project=detail,
        usage=projects.usage(project),
        views=[(view, _address(view)) for view in list_of_project(app_state.database, visitor.user, detail.name)],
        jobs=f"/jobs?{urlencode({'where': f'project = {quoted(detail.name)}'})}",
        roles=_ROLES,
        is_admin=visitor.user.role == "admin",
        is_member=detail.role is not None and visitor.user.role != "viewer",
        data={"project": detail.name},
    )


def _address(view: ViewResource) -> str:
    """Return the address of the table of jobs in a saved view."""
    named = {"where": view.where, "sort": view.sort, "group": view.group}
    pairs = [*parse_qsl(view.page), *((name, text) for name, text in named.items() if text)]
    return f"/jobs?{urlencode([*pairs, *(('columns', column) for column in view.columns)])}"
