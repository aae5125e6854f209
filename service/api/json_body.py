"""Classes of routes: endpoints in thread slots, and JSON bodies with bounded depth and number of values."""

from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.api.dependencies import SAFE_METHODS, caller_checks
from service.core.errors import ClientGoneError, MalformedRequestError
from service.core.thread_slots import caller_thread_slot, ended_with_client, run_in_thread_slot
from trainyard.contract.base import sanitize
from trainyard.contract.bounds import MAX_VALUES, parse_json

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_MAX_INLINE_BYTES = 8 * 1024
"""Size of a body that is parsed and validated on the event loop, within a millisecond or two."""


def parse_body(body: bytes, *, max_values: int = MAX_VALUES, unique_keys: bool = False, any_text: bool = False) -> Any:
    """Return the JSON document in a body. For the arguments, see `parse_json`.

    Raises:
        MalformedRequestError: The body is not JSON in UTF-8, or the document exceeds a bound.
    """
    try:
        return parse_json(body, max_values=max_values, unique_keys=unique_keys, any_text=any_text)
    except UnicodeDecodeError:
        raise MalformedRequestError("the body is not UTF-8 text", code="invalid_encoding") from None
    except ValueError as error:
        raise MalformedRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None


class SlotRoute(APIRoute):
    """Runs an endpoint that is a plain function in a thread slot of its caller, who is checked before the body."""

    def get_route_handler(self) -> Handler:
        handler = self.reading_body(self._in_slot(super().get_route_handler()))
        checks = tuple(caller_checks(self.dependant))

        async def handle(request: Request) -> Response:
            for check in checks:
                await check(request)
            return await handler(request)

        return handle

    def reading_body(self, handler: Handler) -> Handler:
        """Return the handler, extended by the steps before it, once the caller may send the request."""
        return handler

    def _in_slot(self, handler: Handler) -> Handler:
        if iscoroutinefunction(self.endpoint):
            return handler  # It takes slots by `run_in_thread_slot`.

        async def handle(request: Request) -> Response:
            if self.body_field is not None:
                await request.body()  # A slow upload must not occupy a slot.
            async with caller_thread_slot() as deadline:
                if request.method not in SAFE_METHODS or deadline is None:
                    return await handler(request)
                if await request.is_disconnected():
                    # Nobody reads the answer. A client could otherwise queue work without an open connection.
                    raise ClientGoneError("the client disconnected while its request waited")
                async with ended_with_client(request.receive, deadline):
                    return await handler(request)

        return handle


class JsonRoute(SlotRoute):
    """Parses the body by `parse_body`. FastAPI's own parser has no bounds, and a deep document fails only later.

    A body of some size is also validated here, in a thread: FastAPI validates on the event loop.
    """

    def parse(self, request: Request, body: bytes) -> Any:
        return parse_body(body)

    def reading_body(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            if self.body_field is not None and (body := await request.body()):
                if len(body) <= _MAX_INLINE_BYTES:
                    request._json = self.parse(request, body)
                else:
                    request._json = await run_in_thread_slot(self._validate, self.body_field, request, body)
            return await handler(request)

        return handle

    def _validate(self, field: Any, request: Request, body: bytes) -> Any:
        """Return the model, which FastAPI accepts unchanged. `field` is the route's `body_field`."""
        value, errors = field.validate(self.parse(request, body), {}, loc=("body",))
        if errors:
            raise RequestValidationError(errors)
        return value


class ReportRoute(JsonRoute):
    """Replaces characters that cannot be stored: a program's report is never refused for its text."""

    def parse(self, request: Request, body: bytes) -> Any:
        return sanitize(parse_body(body, any_text=True))
