"""The reference of the API as a page: Swagger UI from files of this package, for signed-in users."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.api.dependencies import NowDep
from service.web.pages.jobs import PagesDep, VisitorDep

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def show_api_docs(pages: PagesDep, visitor: VisitorDep, now: NowDep) -> HTMLResponse:
    """Show the operations of the OpenAPI document."""
    return pages.show("api_docs.html", visitor, now)
