"""Request bodies in JSON, with bounded depth and number of values on every route."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from service.core.errors import MalformedRequestError
from trainyard.contract.bounds import MAX_VALUES, parse_json


def parse_body(body: bytes, *, max_values: int = MAX_VALUES, unique_keys: bool = False) -> Any:
    """Return the JSON document in a body.

    Raises:
        MalformedRequestError: The body is not JSON in UTF-8, or the document exceeds a bound.
    """
    try:
        return parse_json(body, max_values=max_values, unique_keys=unique_keys)
    except UnicodeDecodeError:
        raise MalformedRequestError("the body is not UTF-8 text", code="invalid_encoding") from None
    except ValueError as error:
        raise MalformedRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None


class JsonRoute(APIRoute):
    """Parses the body by `parse_body`. FastAPI's own parser has no bounds, and a deep document fails only later."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field is not None and (body := await request.body()):
                request._json = parse_body(body)
            return await handler(request)

        return handle
