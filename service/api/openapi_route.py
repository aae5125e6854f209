"""The route of the OpenAPI document, which anybody can request."""

import threading
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

PATH = "/openapi.json"


def add_openapi_route(app: FastAPI) -> None:
    """Add the route. FastAPI's own renders the document, of almost a megabyte, on the event loop for each request."""
    app.state.openapi_document = RenderedDocument(lambda: app.openapi())
    app.add_api_route(PATH, get_document, name="openapi", include_in_schema=False)


def get_document(request: Request) -> Response:
    """Return the document. A function of the module, since FastAPI caches each route's function for good."""
    document: RenderedDocument = request.app.state.openapi_document
    return Response(document.get(), media_type="application/json")


class RenderedDocument:
    """A JSON document that is rendered once; concurrent callers wait for it."""

    def __init__(self, make: Callable[[], dict[str, Any]]):
        self._make = make
        self._lock = threading.Lock()
        self._body: bytes | None = None

    def get(self) -> bytes:
        with self._lock:
            if self._body is None:
                self._body = bytes(JSONResponse(self._make()).body)
            return self._body
