"""Dependencies of the pages' routes: the renderer and the signed-in user."""

from typing import Annotated

from fastapi import Depends, Request

from service.api.dependencies import AppStateDep, NowDep
from service.auth.sessions import authenticate_session
from service.core.errors import AuthenticationError
from service.web.rendering import Pages, Visitor


async def get_pages(request: Request) -> Pages:
    pages: Pages = request.app.state.pages
    return pages


def get_visitor(request: Request, services: AppStateDep, now: NowDep) -> Visitor:
    """Return the signed-in user.

    Raises:
        AuthenticationError: Nobody is signed in; the response is a redirect to the sign-in page.
    """
    secret = services.cookie.read(request.headers.get("cookie"))
    if secret is None:
        raise AuthenticationError
    return Visitor(authenticate_session(services.database, secret, now), secret)


PagesDep = Annotated[Pages, Depends(get_pages)]
VisitorDep = Annotated[Visitor, Depends(get_visitor)]
