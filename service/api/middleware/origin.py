"""Refuses requests that were not meant for this service."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.dependencies import SAFE_METHODS
from service.api.middleware.errors import HeaderMap, header_map, send_error
from service.core.errors import InvalidRequestError, MalformedRequestError, PermissionDeniedError, ServiceError

SIGN_IN = ("/sign-in", "/sign-in/code", "/sign-in/with-code")
"""Routes that lead to a cookie; a page of another site must not sign anybody in either."""
_ANY_HOST = frozenset({"/livez", "/readyz", "/metrics"})
"""Routes for probes, which use an address instead of a host name."""


_MSG_ORIGIN = (
    "a change with a browser session needs the header `Origin` of this service, which browsers send from its "
    "own pages; programs send a token in the header `Authorization` instead of a cookie"
)


class OriginMiddleware:
    """Refuses unknown host names (DNS rebinding), changes from pages of other sites, and NUL in the URL."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], public_url: str):
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._public = urlsplit(public_url.lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope, header_map(scope))
            except ServiceError as error:
                await send_error(error, scope, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: HeaderMap) -> None:
        name = _host_name(headers.get(b"host", b"").decode("latin-1"))
        if name not in self._hosts and scope["path"] not in _ANY_HOST:
            raise MalformedRequestError(
                f"unknown host {name!r}; add it to TRAINYARD_ALLOWED_HOSTS if this service has that name",
                code="unknown_host",
            )
        has_cookie = b"cookie" in headers or scope["path"] in SIGN_IN
        if scope["method"] not in SAFE_METHODS and has_cookie and not self._same_origin(headers):
            raise PermissionDeniedError(_MSG_ORIGIN, code="cross_site")
        if "\0" in scope["path"] or b"%00" in scope["query_string"] or b"\0" in scope["query_string"]:
            raise InvalidRequestError("the URL contains a NUL character", code="invalid_path")

    def _same_origin(self, headers: HeaderMap) -> bool:
        """Whether the page that sends the request is the service's own.

        Browsers send `Origin` with every unsafe method. A page of the public name over http may be somebody else's, who
        intercepts the connection, if that name has https. Not all proxies pass the name on in `Host`.
        """
        try:
            origin = urlsplit(headers.get(b"origin", b"").decode("latin-1").lower())
        except ValueError:
            return False  # such as `http://[`
        if origin.netloc and origin.netloc == self._public.netloc:
            return origin.scheme == self._public.scheme
        return bool(origin.netloc) and origin.netloc == headers.get(b"host", b"").decode("latin-1").lower()


def _host_name(host: str) -> str:
    """The host without its port, in lower case."""
    head, colon, _ = host.rpartition(":")
    return (head if colon and not host.endswith("]") else host).lower()
