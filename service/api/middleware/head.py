"""Bounds the head of a request before anything interprets it."""

from collections import Counter

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.middleware.errors import send_error
from service.auth.sessions import MAX_COOKIE_BYTES
from service.core.errors import HeadTooLargeError, MalformedRequestError, MethodNotSupportedError, ServiceError

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"})
"""Methods that are routed; a route answers with 405 to a method that it does not have. h11 accepts any token as a
method."""
MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of the method, the path, the query and all headers together."""
MAX_QUERY_PARAMETERS = 256

_SINGLE_HEADERS = frozenset(
    {
        *(b"authorization", b"host", b"cookie", b"origin", b"x-csrf-token", b"content-type", b"content-length"),
        *(b"content-encoding", b"idempotency-key", b"last-event-id", b"range"),
    }
)
"""Headers that must not be repeated, because two readers could each use a different value."""


class RequestHeadMiddleware:
    """Refuses request heads that are too large or ambiguous, and unknown methods."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                check_head(scope)
            except ServiceError as error:
                await send_error(error, scope, send)
                return
        await self._app(scope, receive, send)


def check_head(scope: Scope) -> None:
    """Check the head of a request.

    Raises:
        MethodNotSupportedError: The method is not in `METHODS`.
        HeadTooLargeError: The head, the cookies or the number of query parameters exceed their bounds.
        MalformedRequestError: A header that must be single is repeated.
    """
    if scope["method"] not in METHODS:
        raise MethodNotSupportedError(f"the service knows the methods {', '.join(sorted(METHODS))}")
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    size = len(scope["method"]) + len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in headers)
    if size > MAX_HEAD_BYTES:
        raise HeadTooLargeError(f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")
    if scope["query_string"].count(b"&") >= MAX_QUERY_PARAMETERS:
        raise HeadTooLargeError(f"the URL has more than {MAX_QUERY_PARAMETERS} query parameters")
    counts = Counter(name for name, _ in headers)
    for name in _SINGLE_HEADERS.intersection(counts):
        if counts[name] > 1:
            title = name.decode().title()
            raise MalformedRequestError(f"the header {title} is repeated", code="repeated_header", param=title)
    if sum(len(value) for name, value in headers if name == b"cookie") > MAX_COOKIE_BYTES:
        raise HeadTooLargeError(f"the Cookie header is larger than {MAX_COOKIE_BYTES} bytes", param="Cookie")
