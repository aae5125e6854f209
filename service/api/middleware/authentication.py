"""Authenticates requests and limits their rate, before a byte of the body is read."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.client_address import client_network
from service.api.dependencies import AppState, Caller
from service.api.middleware.errors import header_map, send_error
from service.api.plugin import is_api
from service.api.rate_limits import Allowance
from service.audit.log import CURRENT_REQUEST
from service.auth.principals import Principal, authenticate
from service.auth.sessions import authenticate_session
from service.core.errors import AuthenticationError, RateLimitedError, ServiceError, TooManyRequestsError
from service.core.thread_slots import set_thread_slots

_UNLIMITED = ("/livez", "/static/")
"""Routes that cost next to nothing and need no authentication."""
_PROBES = ("/readyz", "/metrics")
"""Routes with a limit of their own by address, so that wrong tokens from behind a proxy do not make probes fail."""
SIGN_IN_PATHS = frozenset({"/v1/sign-in/nonces", "/v1/sign-in/munge", "/v1/sign-in/tokens"})
"""Routes of the API that need no token, since they lead to a token. They ignore the credentials of a request, and have
a limit and threads of their own."""
_MAX_VERIFIED = 10_000
_MAX_CONCURRENT = 300
"""Maximum number of requests of a token in progress, open streams included."""


@dataclass(frozen=True)
class _Credentials:
    authorization: str | None = None
    secret: str | None = None
    """The secret of a browser session, which counts only without an `Authorization` header."""

    @property
    def digest(self) -> str:
        return sha256(f"{self.authorization}\n{self.secret}".encode()).hexdigest()


class AuthenticationMiddleware:
    """Sets `request.state.caller`, and takes each request from the rate limit of its principal or address.

    Routes of the API require a valid token or session. Requests with neither, or with an invalid token or session,
    share the limit of their address: once an address has used its limit, tokens that were not verified before are
    refused without a look-up.
    """

    def __init__(self, app: ASGIApp, *, app_state: AppState):
        self._app = app
        self._app_state = app_state
        self._verified: OrderedDict[str, None] = OrderedDict()
        """Digests of the credentials that were valid when they were last used."""
        self._in_progress: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_UNLIMITED):
            await self._app(scope, receive, send)
            return
        allowances: list[Allowance] = []

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start" and allowances:
                message = {**message, "headers": [*message["headers"], *allowances[-1].headers]}
            await send(message)

        try:
            caller = await self._admit(scope, allowances)
            if caller is None and is_api(scope) and scope["path"] not in SIGN_IN_PATHS:
                raise AuthenticationError
        except ServiceError as error:
            await send_error(error, scope, send_with_limits)
            return
        scope.setdefault("state", {})["caller"] = caller
        if caller is None:
            await self._app(scope, receive, send_with_limits)
            return
        key = caller.principal.id
        if caller.principal.kind == "worker":
            set_thread_slots(self._app_state.worker_slots, key)
        else:
            set_thread_slots(self._app_state.user_slots, caller.principal.name)
        if self._in_progress[key] >= _MAX_CONCURRENT:
            message = f"{_MAX_CONCURRENT} requests of this token are in progress"
            await send_error(TooManyRequestsError(message), scope, send_with_limits)
            return
        self._in_progress[key] += 1
        try:
            await self._app(scope, receive, send_with_limits)
        finally:
            self._in_progress -= Counter((key,))

    async def _admit(self, scope: Scope, allowances: list[Allowance]) -> Caller | None:
        """Return the caller; None without a valid token or session.

        Args:
            allowances: Receives the allowance of each rate limit that the request is taken from.

        Raises:
            RateLimitedError: The principal or the address has used its limit.
        """
        app_state, now = self._app_state, self._app_state.clock()
        credentials, address = self._credentials(scope), address_key()
        if scope["path"] in SIGN_IN_PATHS:
            allowances.append(app_state.sign_in_rate_limiter.acquire(address, now))
            _require(allowances[-1])
            set_thread_slots(app_state.sign_in_slots, address)
            return None
        if scope["path"] in _PROBES:
            address = f"probes of {address}"
        verified = credentials is not None and credentials.digest in self._verified
        if not verified:
            allowances.append(app_state.address_rate_limiter.acquire(address, now))
            _require(allowances[-1])
        if credentials is None:
            return None
        try:
            principal = await self._authenticate(scope, credentials)
        except AuthenticationError:
            self._verified.pop(credentials.digest, None)
            if verified:
                app_state.address_rate_limiter.acquire(address, now)
            return None
        if not verified:
            app_state.address_rate_limiter.release(address)
        self._add_verified(credentials.digest)
        limiter = app_state.worker_rate_limiter if principal.kind == "worker" else app_state.rate_limiter
        allowances.append(limiter.acquire(f"{principal.kind}:{principal.id}", now))
        _require(allowances[-1])
        return Caller(principal, credentials.secret)

    def _credentials(self, scope: Scope) -> _Credentials | None:
        headers = header_map(scope)
        if (authorization := headers.get(b"authorization")) is not None:
            return _Credentials(authorization=authorization.decode("latin-1"))
        secret = self._app_state.cookie.read(headers.get(b"cookie", b"").decode("latin-1"))
        return _Credentials(secret=secret) if secret is not None else None

    async def _authenticate(self, scope: Scope, credentials: _Credentials) -> Principal:
        app_state, now = self._app_state, self._app_state.clock()
        path: str = scope["path"]
        if credentials.secret is not None:
            return await run_in_threadpool(authenticate_session, app_state.database, credentials.secret, now)
        if path.startswith("/v1/attempts/") and path.endswith("/metrics"):
            return await app_state.worker_tokens.authenticate(credentials.authorization, now)
        return await run_in_threadpool(authenticate, app_state.database, credentials.authorization, now)

    def _add_verified(self, digest: str) -> None:
        self._verified[digest] = None
        self._verified.move_to_end(digest)
        if len(self._verified) > _MAX_VERIFIED:
            self._verified.popitem(last=False)


def _require(allowance: Allowance) -> None:
    if not allowance.allowed:
        raise RateLimitedError(allowance.retry_seconds)


def address_key() -> str:
    """Return the address or network of the current request's client."""
    context = CURRENT_REQUEST.get()
    return client_network(context.address) if context is not None else ""
