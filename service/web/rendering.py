"""Templates, and what every page has in common: who looks, where they can go, what the browser is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from service.auth.principals import Principal
from service.auth.sessions import csrf_of
from service.core.errors import NotFoundError
from service.web import formatting, svg_preview
from service.web.assets import CACHE_FOREVER, SWAGGER_UI_VERSION, Assets
from service.web.security import PAGE_HEADERS
from trainyard import __version__

_NAVIGATION = (("/jobs", "Jobs"), ("/compare", "Compare"), ("/submit", "Submit"), ("/cluster", "Cluster"))
_NAVIGATION_OF: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType(
    {
        "admin": (*_NAVIGATION, ("/admin", "Admin")),
        "viewer": tuple((path, "Plan" if path == "/submit" else word) for path, word in _NAVIGATION),
    }
)


@dataclass(frozen=True)
class Visitor:
    """Who looks at a page."""

    user: Principal
    secret: str
    """Of their session."""

    def may_change(self, owner: str) -> bool:
        """Whether what belongs to `owner` is theirs to change."""
        role = self.user.role
        return role == "admin" or (role == "user" and self.user.name == owner)

    @property
    def shown(self) -> dict[str, Any]:
        """What a page's script may know of them."""
        return {"name": self.user.name, "role": self.user.role, "csrf": csrf_of(self.secret)}


class Pages:
    """Makes answers of templates."""

    def __init__(self) -> None:
        self.assets = Assets()
        self._templates = Environment(
            loader=PackageLoader("service.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= formatting.FILTERS
        self._templates.globals |= {
            "asset": self.assets.url,
            "swagger_ui": self.assets.swagger_ui_url,
            "plotly_url": self.assets.plotly_url,
            "version": __version__,
            "sketch": svg_preview.draw,
        }

    def show(
        self, template: str, visitor: Visitor | None, now: datetime, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """A page; `visitor` is None where nobody is signed in."""
        navigation = _NAVIGATION_OF.get(visitor.user.role or "", _NAVIGATION) if visitor else ()
        shared: Mapping[str, Any] = {"visitor": visitor, "navigation": navigation, "here": "", "now": now, "data": {}}
        body = self._templates.get_template(template).render({**shared, **context})
        return HTMLResponse(body, status_code=status, headers=PAGE_HEADERS)

    def file(self, group: str, name: str, *, gzipped: bool) -> Response:
        """A script or a style.

        Raises:
            NotFoundError: there is none of that name.
        """
        asset = self.assets.get(group, name)
        if asset is None:
            raise NotFoundError("there is no such file")
        versions = (f"plotly-{self.assets.plotly_version}", f"swagger-ui-{SWAGGER_UI_VERSION}")
        current = group in (self.assets.version, *versions)
        headers = {"Cache-Control": CACHE_FOREVER if current else "no-cache", "Vary": "Accept-Encoding"}
        if gzipped:
            headers["Content-Encoding"] = "gzip"
        return Response(asset.gzipped if gzipped else asset.body, media_type=asset.kind, headers=headers)

    def problem(self, request: Request, status: int, message: str) -> Response:
        """A page instead of an error in JSON."""
        if status == HTTPStatus.UNAUTHORIZED:
            return self.to_sign_in(request)
        now = request.app.state.services.clock()
        return self.show("problem.html", None, now, status=status, title=HTTPStatus(status).phrase, message=message)

    def to_sign_in(self, request: Request) -> Response:
        """To the page for signing in, with the way back."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link on another site's page: the browser held the cookie back. Asked for by a page of ours, it comes.
            return self.show("bounce.html", None, request.app.state.services.clock())
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/sign-in?next={quote(target, safe='/')}", status_code=303, headers=PAGE_HEADERS)


def wants_page(request: Request) -> bool:
    """Whether a person with a browser asks, rather than a program."""
    is_api = request.url.path.startswith("/v1/")
    return request.method == "GET" and not is_api and "text/html" in request.headers.get("accept", "")
