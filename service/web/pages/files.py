"""The page of data files: the list, and the upload of a new file."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.dependencies import ID_OF_FILE, AppStateDep, check_after
from service.api.json_body import SlotRoute
from service.db.paging import PageRequest
from service.files.service import file_resource
from service.web.dependencies import PagesDep, VisitorDep

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

_PAGE_SIZE = 100


@router.get("/files")
def show_files(
    app_state: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    after: Annotated[str | None, Query(max_length=40)] = None,
) -> HTMLResponse:
    """Return the list of data files, newest first, with a form to upload a file."""
    check_after(after, ID_OF_FILE)
    rows, has_more = app_state.files.list_page(PageRequest(limit=_PAGE_SIZE, after=after), None)
    files = [file_resource(row) for row in rows]
    return pages.render(
        "files.html",
        visitor,
        section="/files",
        files=[(file, visitor.may_change(file.created_by)) for file in files],
        may_upload=visitor.user.role != "viewer",
        older=f"/files?after={files[-1].id}" if has_more else "",
    )
