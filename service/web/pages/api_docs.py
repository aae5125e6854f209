"""The reference of the API as a page, for signed-in users."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.api.json_body import SlotRoute
from service.web.dependencies import PagesDep, VisitorDep

router = APIRouter(include_in_schema=False, route_class=SlotRoute)


@router.get("/docs")
def show_api_docs(pages: PagesDep, visitor: VisitorDep) -> HTMLResponse:
    """Show the operations of the OpenAPI document."""
    return pages.render("api_docs.html", visitor)
