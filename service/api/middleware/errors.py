"""Error responses that the middlewares send themselves, and the response to an unexpected exception."""

import json
from collections.abc import Callable

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.plugin import rendered_by_plugin
from service.core.errors import ClientGoneError, ServiceError

HeaderMap = dict[bytes, bytes]
ErrorPage = Callable[[Request, int, str], Response | None]
"""Renders an error as a page; None where the client expects JSON."""


def header_map(scope: Scope) -> HeaderMap:
    """Return the request's headers by lower-case name."""
    return dict(scope["headers"])


async def send_error(error: ServiceError, scope: Scope, send: Send) -> None:
    """Send a complete response for the error: as a page, in the format of the path's plugin, or as JSON."""
    error_page: ErrorPage = scope["app"].state.error_page
    if (page := error_page(Request(scope), error.status, error.message)) is not None:
        page.headers.update(error.headers)
        await page(scope, _receive_nothing, send)
        return
    status, body = error.status, error.envelope().model_dump_json(exclude={"problems"}).encode()
    if (response := rendered_by_plugin(error, scope)) is not None:
        status, document = response
        body = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _receive_nothing() -> Message:
    return {"type": "http.disconnect"}


class ErrorMiddleware:
    """Sends an error response if the application raises an exception. If the response has started, raises it again."""

    def __init__(self, app: ASGIApp):
        self._app = app
        self._log = structlog.get_logger("http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ServiceError as error:
            if started:
                raise
            await send_error(error, scope, send)
        except ClientDisconnect:
            if started:
                raise
            await send_error(ClientGoneError("the client disconnected while it sent the body"), scope, send)
        except Exception:
            self._log.exception("unexpected", method=scope["method"], path=scope["path"])
            if started:
                raise
            await send_error(ServiceError("internal error; see the log of the service"), scope, send)
