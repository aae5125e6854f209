"""What happens to every request before a route sees it: an id, its bounds, and its entry in the audit."""

import asyncio
import random
import time
from collections.abc import Iterable
from hashlib import sha256
from ipaddress import ip_network
from urllib.parse import urlsplit

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.client_address import client_address
from service.api.dependencies import SAFE_METHODS, Services
from service.api.rate_limits import Allowance
from service.audit.log import CURRENT_REQUEST, RequestContext
from service.auth.tokens import bearer
from service.core.errors import (
    BodyTooLargeError,
    InvalidRequestError,
    MalformedRequestError,
    PermissionDeniedError,
    RateLimitedError,
    RequestTimeoutError,
    ServiceError,
)
from trainyard.contract.spec.user_code import MAX_CODE_BYTES
from trainyard.contract.wire.reports import MAX_LOG_CHUNK

_ALWAYS_OPEN = frozenset({"/livez", "/readyz", "/metrics"})
"""Probes come by address."""
SIGN_IN = "/sign-in"
"""Whose answer makes a cookie: another site's page must not sign anybody in either."""
_BODY_SECONDS = 30.0
_SLOWEST_BODY = 16 * 1024
"""Bytes a second that a body must bring after its first half minute."""

Headers = dict[bytes, bytes]


class Gate:
    """Pure ASGI, so that streams stay streams and a body is counted as it comes."""

    def __init__(self, app: ASGIApp, *, services: Services, hosts: Iterable[str]):
        self._app = app
        self._services = services
        self._hosts = frozenset(host.lower() for host in hosts)
        self._proxies = tuple(ip_network(proxy) for proxy in services.settings.trusted_proxies)
        self._log = structlog.get_logger("http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Headers = {name.lower(): value for name, value in scope["headers"]}
        context = RequestContext(
            request_id(headers.get(b"x-request-id", b"")), self._address(scope, headers), scope["method"]
        )
        CURRENT_REQUEST.set(context)
        answer = _Answer(send, self._services, context)
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=context.request_id):
            try:
                answer.allowance = self._take(scope, headers, context)
                self._check(scope, headers, answer.allowance)
                await self._app(scope, _bounded(receive, self._limit(scope), answer), answer.send)
            except ServiceError as error:
                await _refuse(error, answer)
            except Exception:
                self._log.exception("unexpected", method=scope["method"], path=scope["path"])
                if answer.status is not None:
                    raise
                await _refuse(ServiceError("something went wrong in the service; its log has more"), answer)
            finally:
                self._record(scope, answer.status or 500, time.monotonic() - started)

    def _address(self, scope: Scope, headers: Headers) -> str:
        peer = (scope.get("client") or ("unknown", 0))[0]
        return client_address(peer, headers.get(b"x-forwarded-for", b"").decode("latin-1"), self._proxies)

    def _take(self, scope: Scope, headers: Headers, context: RequestContext) -> Allowance | None:
        """One request of what the token may make. Whoever sends none shares their address's."""
        if not scope["path"].startswith("/v1/") and scope["path"] != SIGN_IN:
            return None
        token = headers.get(b"authorization", b"") or self._session(headers)
        buckets = self._services.worker_buckets if is_workers(token) else self._services.buckets
        return buckets.take(bucket_of(token) if token else context.address, self._services.clock())

    def _session(self, headers: Headers) -> bytes:
        secret = self._services.cookie.read(headers.get(b"cookie", b"").decode("latin-1"))
        return (secret or "").encode()

    def _limit(self, scope: Scope) -> int:
        if scope["path"].startswith("/v1/code/") and scope["method"] == "PUT":
            return MAX_CODE_BYTES
        limit = self._services.settings.body_limit
        return max(limit, MAX_LOG_CHUNK) if scope["path"].endswith("/logs") else limit

    def _check(self, scope: Scope, headers: Headers, allowance: Allowance | None) -> None:
        """Raises ServiceError: this request goes no further."""
        name = host_name(headers.get(b"host", b"").decode("latin-1"))
        if name not in self._hosts and scope["path"] not in _ALWAYS_OPEN:
            raise MalformedRequestError(
                f"this service is not called {name!r}; set TRAINYARD_ALLOWED_HOSTS if it is", code="unknown_host"
            )
        carries = b"cookie" in headers or scope["path"] == SIGN_IN
        if scope["method"] not in SAFE_METHODS and carries and not _same_origin(headers):
            raise PermissionDeniedError("this request comes from a page of another site", code="cross_site")
        if allowance is not None and not allowance.allowed:
            raise RateLimitedError(allowance.retry_seconds)
        if "\0" in scope["path"] or b"%00" in scope["query_string"] or b"\0" in scope["query_string"]:
            raise InvalidRequestError("the address holds a NUL, which no name has", code="invalid_path")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise MalformedRequestError("compressed bodies are not taken", code="content_encoding")
        limit, length = self._limit(scope), headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            raise BodyTooLargeError(f"the body is larger than {limit} bytes")

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "unmatched")
        self._services.metrics.request(scope["method"], path, status, seconds)
        if status >= 500:
            self._log.error("request", method=scope["method"], path=scope["path"], status=status)


class _Answer:
    """What goes out, with what every answer carries; nothing does before it is in the audit."""

    def __init__(self, send: Send, services: Services, context: RequestContext):
        self._send = send
        self._services = services
        self._context = context
        self.status: int | None = None
        """Once it has begun."""
        self.allowance: Allowance | None = None
        self.refusal: ServiceError | None = None
        """Why the body was not read to its end. A route that takes that for malformed JSON is not heard."""

    async def send(self, message: Message) -> None:
        """What the application says."""
        if self.refusal is None:
            await self.say(message)
        elif self.status is None:
            await _refuse(self.refusal, self)

    async def say(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._services.audit_log.misses(self._context, self.status):
                # In a thread, and only then: a hop there and back is a part of what a request costs.
                await run_in_threadpool(self._services.audit_log.answered, self._context, self.status)
            message = {**message, "headers": [*message["headers"], *marks(self._context.request_id, self.allowance)]}
        await self._send(message)


def marks(request: str, allowance: Allowance | None) -> list[tuple[bytes, bytes]]:
    """The headers of every answer."""
    own = [(b"x-request-id", request.encode()), (b"x-content-type-options", b"nosniff")]
    return own + allowance.headers if allowance else own


def is_workers(authorization: bytes) -> bool:
    """Whether a token claims to be a worker's."""
    return authorization[7:11] == b"tyw_"


def bucket_of(authorization: bytes) -> str:
    """The name of a token's bucket, which does not hold the token."""
    return sha256((bearer(authorization.decode("latin-1")) or "").encode() or authorization).hexdigest()


def host_name(host: str) -> str:
    """Without the port."""
    head, colon, _ = host.rpartition(":")
    return (head if colon and not host.endswith("]") else host).lower()


def _same_origin(headers: Headers) -> bool:
    """Whether the page that sends this is the service's own. A browser says so with everything but a GET."""
    origin = urlsplit(headers.get(b"origin", b"").decode("latin-1"))
    return bool(origin.netloc) and origin.netloc.lower() == headers.get(b"host", b"").decode("latin-1").lower()


def request_id(given: bytes) -> str:
    """The caller's own, if it is one."""
    text = given.decode("latin-1")
    if 0 < len(text) <= 64 and text.isascii() and all(c.isalnum() or c in "-_" for c in text):
        return text
    # A name and no secret: the system's generator would let go of Python's lock, and wait for it again.
    return f"req_{random.getrandbits(128):032x}"


def _bounded(receive: Receive, limit: int, answer: _Answer) -> Receive:
    """A body of so many bytes at most, which does not take for ever."""
    seen, more, started = 0, True, time.monotonic()

    async def receive_bounded() -> Message:
        nonlocal seen, more
        if not more:
            return await receive()
        patience = _BODY_SECONDS + seen / _SLOWEST_BODY - (time.monotonic() - started)
        try:
            async with asyncio.timeout(max(0.1, patience)):
                message = await receive()
        except TimeoutError:
            answer.refusal = RequestTimeoutError("the body comes too slowly")
            raise answer.refusal from None
        seen += len(message.get("body", b""))
        more = bool(message.get("more_body", False))
        if seen > limit:
            answer.refusal = BodyTooLargeError(f"the body is larger than {limit} bytes")
            raise answer.refusal
        return message

    return receive_bounded


async def _refuse(error: ServiceError, answer: _Answer) -> None:
    if answer.status is not None:
        raise error
    headers, body = refusal(error)
    await answer.say({"type": "http.response.start", "status": error.status, "headers": headers})
    await answer.say({"type": "http.response.body", "body": body})


def refusal(error: ServiceError) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """An error's headers and body."""
    body = error.envelope().model_dump_json(exclude={"problems"}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return headers + [(name.lower().encode(), value.encode()) for name, value in error.headers.items()], body
