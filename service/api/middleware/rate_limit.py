"""Limits the rate of requests for each token."""

from hashlib import sha256

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.dependencies import AppState
from service.api.middleware.errors import HeaderMap, header_map, send_error
from service.api.middleware.origin import SIGN_IN
from service.api.rate_limits import Allowance
from service.audit.log import CURRENT_REQUEST
from service.auth.tokens import bearer
from service.core.errors import RateLimitedError


class RateLimitMiddleware:
    """Takes each API request from the token's limit and adds the `RateLimit-*` headers to the response.

    Requests without a token share the limit of their address.
    """

    def __init__(self, app: ASGIApp, *, services: AppState):
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (scope["path"].startswith("/v1/") or scope["path"] == SIGN_IN):
            await self._app(scope, receive, send)
            return
        allowance = self._acquire(header_map(scope))

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *allowance.headers]}
            await send(message)

        if allowance.allowed:
            await self._app(scope, receive, send_with_limits)
        else:
            await send_error(RateLimitedError(allowance.retry_seconds), send_with_limits)

    def _acquire(self, headers: HeaderMap) -> Allowance:
        token = headers.get(b"authorization", b"") or self._session_secret(headers)
        is_worker = token[7:11] == b"tyw_"
        limiter = self._services.worker_rate_limiter if is_worker else self._services.rate_limiter
        return limiter.acquire(_key(token), self._services.clock())

    def _session_secret(self, headers: HeaderMap) -> bytes:
        secret = self._services.cookie.read(headers.get(b"cookie", b"").decode("latin-1"))
        return (secret or "").encode()


def _key(token: bytes) -> str:
    """The limiter's key: a digest of the token, or the client's address."""
    if token:
        return sha256((bearer(token.decode("latin-1")) or "").encode() or token).hexdigest()
    context = CURRENT_REQUEST.get()
    return context.address if context is not None else ""
