"""The documentation as pages, with a search, and the reference of the API."""

from functools import cache
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.json_body import SlotRoute
from service.core.errors import NotFoundError
from service.web.dependencies import PagesDep, VisitorDep
from service.web.help_texts import HelpTexts

router = APIRouter(include_in_schema=False, route_class=SlotRoute)
_texts = cache(HelpTexts)


@router.get("/help")
def show_help(
    pages: PagesDep, visitor: VisitorDep, query: Annotated[str, Query(alias="q", max_length=200)] = ""
) -> HTMLResponse:
    """Show the contents, or the sections that match the query."""
    matches = _texts().search(query) if query.strip() else None
    contents = _texts().contents()
    titles = {text.name: text.title for _, texts in contents for text in texts}
    return pages.render(
        "help.html", visitor, section="/help", contents=contents, query=query, matches=matches, titles=titles
    )


@router.get("/help/{name:path}")
def show_help_text(name: str, pages: PagesDep, visitor: VisitorDep) -> HTMLResponse:
    """Show a file.

    Raises:
        NotFoundError: There is none of that name.
    """
    text = _texts().get(name)
    if text is None:
        raise NotFoundError(f"the documentation has no page {name[:200]!r}; /help has the contents")
    return pages.render("help_text.html", visitor, section="/help", text=text)


@router.get("/docs")
def show_api_docs(pages: PagesDep, visitor: VisitorDep) -> HTMLResponse:
    """Show the operations of the OpenAPI document."""
    return pages.render("api_docs.html", visitor)
