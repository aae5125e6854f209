"""Dependencies of the pages' routes: the renderer and the signed-in user."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Request

from service.api.dependencies import get_caller, restrict_to_visible_jobs
from service.core.errors import AuthenticationError
from service.web.rendering import Pages, Visitor


class SessionRequiredError(AuthenticationError):
    """A page was requested without a browser session."""

    headers: Mapping[str, str] = {}

    def __init__(self) -> None:
        super().__init__(
            "pages need a browser session: sign in at /sign-in; the API's description for programs is /openapi.json"
        )


async def get_pages(request: Request) -> Pages:
    pages: Pages = request.app.state.pages
    return pages


async def get_visitor(request: Request) -> Visitor:
    """Return the signed-in user. Pages accept only browser sessions, not API tokens.

    Raises:
        AuthenticationError: Nobody is signed in; a browser is redirected to the sign-in page.
    """
    if "authorization" in request.headers:
        raise SessionRequiredError
    caller = get_caller(request)
    if caller.secret is None:
        raise SessionRequiredError
    restrict_to_visible_jobs(request, caller.principal)
    return Visitor(caller.principal, caller.secret)


PagesDep = Annotated[Pages, Depends(get_pages)]
VisitorDep = Annotated[Visitor, Depends(get_visitor)]
