"""Request bodies in JSON, with bounded depth and number of values on every route."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from service.core.errors import MalformedRequestError
from trainyard.contract.base import sanitize
from trainyard.contract.bounds import MAX_VALUES, parse_json


def parse_body(body: bytes, *, max_values: int = MAX_VALUES, unique_keys: bool = False, any_text: bool = False) -> Any:
    """Return the JSON document in a body. The arguments are those of `parse_json`.

    Raises:
        MalformedRequestError: The body is not JSON in UTF-8, or the document exceeds a bound.
    """
    try:
        return parse_json(body, max_values=max_values, unique_keys=unique_keys, any_text=any_text)
    except UnicodeDecodeError:
        raise MalformedRequestError("the body is not UTF-8 text", code="invalid_encoding") from None
    except ValueError as error:
        raise MalformedRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None


class JsonRoute(APIRoute):
    """Parses the body by `parse_body`. FastAPI's own parser has no bounds, and a deep document fails only later."""

    def parse(self, body: bytes) -> Any:
        return parse_body(body)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field is not None and (body := await request.body()):
                request._json = self.parse(body)
            return await handler(request)

        return handle


class ReportRoute(JsonRoute):
    """Replaces characters that cannot be stored: a program's report is never refused for its text."""

    def parse(self, body: bytes) -> Any:
        return sanitize(parse_body(body, any_text=True))
