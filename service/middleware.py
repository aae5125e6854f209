"""What happens to every request before a route sees it: an id, the host it names, and a bound on its body."""

import time
from collections.abc import Iterable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from ulid import ULID

from service.errors import BodyTooLargeError, MalformedRequestError, ServiceError
from service.observability import ServiceMetrics
from trainyard.contract.code import MAX_CODE_BYTES
from trainyard.contract.reports import MAX_LOG_CHUNK

_ALWAYS_OPEN = frozenset({"/livez", "/readyz", "/metrics"})
"""Probes come by address."""


class Gate:
    """Pure ASGI, so that streams stay streams and a body is counted as it comes."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], body_limit: int, metrics: ServiceMetrics):
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._body_limit = body_limit
        self._metrics = metrics
        self._log = structlog.get_logger("http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        request_id = _request_id(headers.get(b"x-request-id", b""))
        started = time.monotonic()
        status = 500

        async def send_tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        limit = self._limit(scope)
        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                self._check(scope, headers, limit)
                await self._app(scope, _bounded(receive, limit), send_tagged)
        except ServiceError as error:
            await _refuse(error, send_tagged)
        finally:
            self._record(scope, status, time.monotonic() - started, request_id)

    def _limit(self, scope: Scope) -> int:
        if scope["path"].startswith("/v1/code/") and scope["method"] == "PUT":
            return MAX_CODE_BYTES
        return max(self._body_limit, MAX_LOG_CHUNK) if scope["path"].endswith("/logs") else self._body_limit

    def _check(self, scope: Scope, headers: dict[bytes, bytes], limit: int) -> None:
        host = headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)
        name = headers.get(b"host", b"").decode("latin-1") if host[-1].endswith("]") else host[0]
        if name.lower() not in self._hosts and scope["path"] not in _ALWAYS_OPEN:
            raise MalformedRequestError(
                f"this service is not called {name!r}; set TRAINYARD_ALLOWED_HOSTS if it is", code="unknown_host"
            )
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise MalformedRequestError("compressed bodies are not taken", code="content_encoding")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            raise BodyTooLargeError(f"the body is larger than {limit} bytes")

    def _record(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "unmatched")
        self._metrics.request(scope["method"], path, status, seconds)
        if status >= 500:
            self._log.error("request", method=scope["method"], path=scope["path"], status=status, id=request_id)


def _request_id(given: bytes) -> str:
    text = given.decode("latin-1")
    if 0 < len(text) <= 64 and text.isascii() and all(c.isalnum() or c in "-_" for c in text):
        return text
    return "req_" + str(ULID()).lower()


def _bounded(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def receive_bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise BodyTooLargeError(f"the body is larger than {limit} bytes")
        return message

    return receive_bounded


async def _refuse(error: ServiceError, send: Send) -> None:
    body = error.envelope().model_dump_json(exclude={"problems"}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
