"""The outermost middleware: gives each request an id, and logs and measures it."""

import random
import time
from collections.abc import Sequence
from ipaddress import ip_network

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.client_address import client_address, is_trusted
from service.api.middleware.errors import HeaderMap, header_map
from service.api.middleware.head import METHODS
from service.api.plugin import is_api
from service.audit.log import CURRENT_REQUEST, RequestContext
from service.core.observability import ServiceMetrics
from service.core.thread_slots import forget_caller
from trainyard.contract.http import API_HEADER, API_VERSION

_API = (API_HEADER.encode(), API_VERSION.encode())
"""Proof for clients that the service itself answers, and not a proxy."""
_HSTS = (b"strict-transport-security", b"max-age=15552000")
"""For 180 days, browsers reach this host by https alone. Not its subdomains, which may be of others."""


class RequestIdMiddleware:
    """Sets the `RequestContext`, adds headers to the response, and records the request in the metrics."""

    def __init__(self, app: ASGIApp, *, metrics: ServiceMetrics, trusted_proxies: Sequence[str]):
        self._app = app
        self._metrics = metrics
        self._proxies = tuple(ip_network(proxy) for proxy in trusted_proxies)
        self._log = structlog.get_logger("http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = header_map(scope)
        peer = (scope.get("client") or ("unknown", 0))[0]
        address = client_address(peer, headers.get(b"x-forwarded-for", b"").decode("latin-1"), self._proxies)
        context = RequestContext(request_id(headers.get(b"x-request-id", b"")), address, scope["method"])
        CURRENT_REQUEST.set(context)
        forget_caller()
        own = [_API, (b"x-request-id", context.request_id.encode()), (b"x-content-type-options", b"nosniff")]
        own += [_HSTS] if self._is_secure(scope, peer, headers) else []
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *own, *_cache_headers(scope, message)]}
            await send(message)

        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=context.request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                self._record(scope, status, time.monotonic() - started)

    def _is_secure(self, scope: Scope, peer: str, headers: HeaderMap) -> bool:
        """Whether the client reached the service, or a trusted proxy before it, by https."""
        by_proxy = headers.get(b"x-forwarded-proto") == b"https" and is_trusted(peer, self._proxies)
        return scope["scheme"] == "https" or by_proxy

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # No label may have a value of the client's choice: each new value is a series for the life of the process.
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.request(method, route, status, seconds)
        if status >= 500 and method != "other":
            self._log.error("request", method=method, path=scope["path"], status=status)


def _cache_headers(scope: Scope, message: Message) -> list[tuple[bytes, bytes]]:
    """Forbid browsers and proxies to store answers of the API; a cookie opens them too."""
    present = any(name.lower() == b"cache-control" for name, _ in message["headers"])
    return [(b"cache-control", b"no-store")] if is_api(scope) and not present else []


def request_id(given: bytes) -> str:
    """The caller's own id if it is well-formed, else a new id."""
    text = given.decode("latin-1")
    if 0 < len(text) <= 64 and text.isascii() and all(c.isalnum() or c in "-_" for c in text):
        return text
    # Not a secret: the system's generator would release the GIL and wait for it again.
    return f"req_{random.getrandbits(128):032x}"
