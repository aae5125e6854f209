"""Templates, and the parts that all pages share: navigation, headers and the embedded data of the scripts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from service.api.plugin import PageLink, PagePart, Plugin, is_api
from service.auth.principals import Principal
from service.auth.sessions import csrf_of
from service.core.errors import NotFoundError
from service.web.assets import CACHE_FOREVER, Assets
from service.web.security import PAGE_HEADERS
from trainyard import __version__
from trainyard.contract.wire.cluster import MaintenanceResource

_RESULTS = (PageLink("/jobs", "Jobs"), PageLink("/compare", "Compare"))
_OTHERS = (
    PageLink("/projects", "Projects"),
    PageLink("/files", "Files"),
    PageLink("/cluster", "Cluster"),
    PageLink("/help", "Help"),
)

_ADDRESS = re.compile(r"""(\s(?:href|src|action|formaction)=")/""")
"""An address of the service in a page. Only attributes of elements match: in texts and JSON, quotes are escaped."""


@dataclass(frozen=True)
class Visitor:
    """The signed-in user of a page, with the secret of the session."""

    user: Principal
    secret: str

    def may_change(self, owner: str) -> bool:
        """Return whether the user may change the resources of `owner`."""
        role = self.user.role
        return role == "admin" or (role == "user" and self.user.name == owner)

    @property
    def script_data(self) -> dict[str, Any]:
        """The user's name and role and the CSRF token, as scripts need them."""
        return {"name": self.user.name, "role": self.user.role, "csrf": csrf_of(self.secret)}


@cache
def _assets() -> Assets:
    return Assets()


@cache
def _templates(packages: tuple[str, ...]) -> Environment:
    """Return the templates of some packages, which each process compiles once."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["pairs"] = format_pairs
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    assets = _assets()
    made.globals |= {
        "asset": assets.url,
        "imports": assets.imports,
        "library": assets.library_url,
        "version": __version__,
    }
    return made


class Pages:
    """Renders templates to responses.

    A page embeds the API's answers as JSON in `<script type="application/json">`, which browsers do not execute.
    Jinja's `tojson` escapes `<`, `>`, `&`, `'` and all characters beyond ASCII, so that no value can end the element.
    """

    def __init__(
        self,
        read_maintenance: Callable[[], MaintenanceResource],
        base: str = "",
        plugins: Sequence[Plugin] = (),
        sign_ins: Sequence[PageLink] = (),
    ) -> None:
        """
        Args:
            read_maintenance: Returns the maintenance mode, of which every page of a signed-in user has a banner.
            base: The path below which users reach the service; templates and routes know none.
            plugins: Plugins whose pages are shown.
            sign_ins: Ways to sign in without a token.
        """
        self._base = base
        self._sign_ins = sign_ins
        self._read_maintenance = read_maintenance
        self.assets = _assets()
        self._templates = _templates(("service.web", *(plugin.templates for plugin in plugins if plugin.templates)))
        self._plugins = plugins
        self._resource_pages = {kind: path for plugin in plugins for kind, path in plugin.resource_pages.items()}
        self._results = (*_RESULTS, *(link for plugin in plugins for link in plugin.navigation))
        more = [tab for plugin in plugins for tab in plugin.admin_tabs]
        self.admin_tabs = (PageLink("/admin", "Tokens"), *more, PageLink("/admin/audit", "Audit"))

    def render(self, template: str, visitor: Visitor | None, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page; `visitor` is None if nobody is signed in. `data` in the context is for the page's script."""
        shared: dict[str, Any] = {
            "visitor": visitor,
            "section": "",
            "data": {},
            "resource_pages": self._resource_pages,
            "shortcuts": [(one.key, one.path, one.label) for plugin in self._plugins for one in plugin.shortcuts],
        }
        shared |= {"base": self._base, "navigation": self._navigation(visitor), "admin_tabs": self.admin_tabs}
        parts = self._parts(template)
        shared["part_scripts"] = [part.script for part in parts if part.script]
        shared["part_styles"] = [part.style for part in parts if part.style]
        shared["slot"] = lambda name: [part.slots[name] for part in parts if name in part.slots]
        shared["maintenance"] = self._read_maintenance() if visitor else None
        body = self._templates.get_template(template).render({**shared, **context})
        if self._base:
            body = _ADDRESS.sub(rf"\1{self._base}/", body)
        return HTMLResponse(body, status_code=status, headers=PAGE_HEADERS)

    def sign_in(self, target: str, *, status: int = 200, problem: str = "", field_problem: str = "") -> HTMLResponse:
        """Return the sign-in page.

        Args:
            target: The page to open after signing in, a path of this service.
            problem: Why the last sign-in failed.
            field_problem: Why the token was refused.
        """
        context = {"sign_ins": self._sign_ins, "next": target, "problem": problem, "field_problem": field_problem}
        return self.render("sign_in.html", None, status=status, **context)

    def _parts(self, template: str) -> list[PagePart]:
        return [plugin.page_parts[template] for plugin in self._plugins if template in plugin.page_parts]

    def _navigation(self, visitor: Visitor | None) -> Sequence[PageLink]:
        role = visitor.user.role if visitor else None
        admin = (PageLink("/admin", "Admin"),) if role == "admin" else ()
        may_plan = any("plan" in part.slots for part in self._parts("submit.html"))
        writing = (
            (PageLink("/submit", "Plan" if role == "viewer" else "New job"),) if role != "viewer" or may_plan else ()
        )
        return (*self._results, *writing, *_OTHERS, *admin)

    def static_file(self, group: str, name: str, *, gzipped: bool) -> Response:
        """Return a script or a style.

        Raises:
            NotFoundError: There is no file of that name.
        """
        asset = self.assets.get(group, name)
        if asset is None:
            raise NotFoundError("there is no such file")
        current = group in self.assets.groups
        headers = {"Cache-Control": CACHE_FOREVER if current else "no-cache", "Vary": "Accept-Encoding"}
        if gzipped:
            headers["Content-Encoding"] = "gzip"
        return Response(asset.gzipped if gzipped else asset.body, media_type=asset.media_type, headers=headers)

    def error(self, request: Request, status: int, message: str) -> Response:
        """Return an error as a page; a missing session redirects to the sign-in page."""
        if status == HTTPStatus.UNAUTHORIZED:
            return self.redirect_to_sign_in(request)
        title = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
        return self.render("error.html", None, status=status, title=title, message=message)

    def redirect_to_sign_in(self, request: Request) -> Response:
        """Redirect to the sign-in page, which redirects back to the requested page."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            # Browsers withhold a SameSite=Strict cookie if a link on another site leads here. A page that reloads
            # itself makes a same-site request, which carries the cookie.
            return self.render("reload.html", None)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/sign-in?next={quote(target, safe='/')}", status_code=303, headers=PAGE_HEADERS)


def format_pairs(values: Mapping[str, Any]) -> str:
    """Return `key: value` pairs for readers; nested mappings are in parentheses."""
    return ", ".join(f"{name}: {_format_value(value)}" for name, value in values.items())


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({format_pairs(value)})"
    if isinstance(value, list):
        return " ".join(map(_format_value, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def accepts_html(request: Request) -> bool:
    """Return whether the request comes from a browser that opens a page."""
    return request.method == "GET" and not is_api(request.scope) and "text/html" in request.headers.get("accept", "")
