"""Limits the size of request bodies and the time that they may take."""

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.middleware.authentication import SIGN_IN_PATHS
from service.api.middleware.errors import header_map, send_error
from service.api.multipart import FORM_OVERHEAD
from service.api.plugin import is_api, plugin_of
from service.core.errors import BodyTooLargeError, MalformedRequestError, RequestTimeoutError, ServiceError
from trainyard.contract.bounds import MAX_SPEC_BYTES
from trainyard.contract.data_files import MAX_SINGLE_UPLOAD_BYTES
from trainyard.contract.spec.user_code import MAX_CODE_BYTES
from trainyard.contract.wire.reports import MAX_LOG_CHUNK

_MAX_FORM_BYTES = 8192
"""Size of the forms of the dashboard and of the bodies of sign-ins, which anybody can send."""
_BODY_SECONDS = 30.0
_MIN_BODY_RATE = 16 * 1024
"""Bytes a second that a body must reach after `_BODY_SECONDS`."""


class BodyLimitMiddleware:
    """Refuses bodies that are compressed, too large or sent too slowly."""

    def __init__(self, app: ASGIApp, *, limit: int):
        """
        Args:
            limit: Maximum size of a worker's report in bytes. Users' requests have the limit of a spec.
        """
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _BoundedBody(scope, receive, send, self._limit_of(scope))
        try:
            body.check_headers()
        except ServiceError as error:
            await send_error(error, scope, send)
            return
        await self._app(scope, body.receive, body.send)

    def _limit_of(self, scope: Scope) -> int:
        path: str = scope["path"]
        if path.startswith("/v1/attempts/"):
            return max(self._limit, MAX_LOG_CHUNK) if path.endswith("/logs") else self._limit
        if path.startswith("/v1/code/") and scope["method"] == "PUT":
            return MAX_CODE_BYTES
        if (plugin := plugin_of(scope)) is not None and path in plugin.body_limits:
            return plugin.body_limits[path]
        if path == "/v1/files" or (path.startswith("/v1/uploads/") and scope["method"] == "PUT"):
            return MAX_SINGLE_UPLOAD_BYTES + FORM_OVERHEAD
        anybody = not is_api(scope) or path in SIGN_IN_PATHS
        return min(self._limit, _MAX_FORM_BYTES if anybody else MAX_SPEC_BYTES)


class _BoundedBody:
    """One request's body while it is received, and the response if the body is refused."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int):
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = limit
        self._size = 0
        self._more = True
        self._started = time.monotonic()
        self._responding = False
        self._refusal: ServiceError | None = None

    def check_headers(self) -> None:
        headers = header_map(self._scope)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise MalformedRequestError("compressed bodies are not supported", code="content_encoding")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        if not self._more:
            return await self._receive()
        remaining = _BODY_SECONDS + self._size / _MIN_BODY_RATE - (time.monotonic() - self._started)
        try:
            async with asyncio.timeout(max(0.1, remaining)):
                message = await self._receive()
        except TimeoutError:
            self._refusal = RequestTimeoutError("the body is sent too slowly")
            raise self._refusal from None
        self._size += len(message.get("body", b""))
        self._more = bool(message.get("more_body", False))
        if self._size > self._limit:
            self._refusal = self._too_large()
            raise self._refusal
        return message

    async def send(self, message: Message) -> None:
        """Send the application's response, or the refusal, which a route may have taken for malformed JSON."""
        if self._refusal is None:
            self._responding = True
            await self._send(message)
        elif not self._responding:
            self._responding = True
            await send_error(self._refusal, self._scope, self._send)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body is larger than {self._limit} bytes")
