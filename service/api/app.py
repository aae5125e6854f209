"""The FastAPI application, put together from its parts."""

import socket
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from service.api.dependencies import Services
from service.api.middleware import add_middleware
from service.api.openapi import common_errors, finish, methods_of
from service.api.routes import (
    artifacts,
    attempts,
    checkpoints,
    cluster,
    code,
    jobs,
    logs,
    metrics,
    plans,
    streams,
    sweeps,
    usage,
    webhooks,
)
from service.api.routes import tokens as access
from service.api.routes.diagnostics import router as examination
from service.api.routes.health import router as health
from service.api.routes.templates import presets
from service.api.routes.templates import router as templates
from service.core.errors import InvalidRequestError, NotFoundError, ServiceError
from service.core.settings import Settings
from trainyard import __version__
from trainyard.contract.validation_messages import describe_error
from trainyard.contract.wire.pages import ErrorBody, ErrorEnvelope

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    422: "invalid_request_error",
}


ErrorPage = Callable[[Request, int, str], Response | None]
"""Renders an error as a page; None where the client expects JSON."""


def create_api(services: Services, error_page: ErrorPage = lambda request, status, message: None) -> FastAPI:
    """Create the application of the API on the given parts; nothing is started."""
    app = FastAPI(
        title="Trainyard",
        version=__version__,
        summary="Training specs in, correct and resumable PyTorch runs out.",
        responses=common_errors(),
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.error_page = error_page
    presets()
    # They are tried in this order, and most requests are workers'.
    for router in (
        attempts.router,
        jobs.router,
        sweeps.router,
        logs.router,
        metrics.router,
        streams.router,
        templates,
        cluster.router,
        plans.router,
        code.router,
        artifacts.router,
        checkpoints.router,
        usage.router,
        examination,
        access.router,
        access.audit_router,
        webhooks.router,
        health,
    ):
        app.include_router(router)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = _described(app.openapi)  # type: ignore[method-assign]
    add_middleware(app, services, known_hosts(services.settings))
    return app


def _described(openapi: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The document of the framework, with what it cannot know; made when it is first asked for."""
    return cache(lambda: finish(openapi()))


def known_hosts(settings: Settings) -> Iterable[str]:
    """The names under which the service may be called; a page elsewhere cannot reach it under one of its own."""
    own = {"localhost", "127.0.0.1", "[::1]", settings.host, socket.gethostname(), socket.getfqdn()}
    public = urlsplit(settings.service_url).hostname
    return {name for name in {*own, *settings.allowed_hosts, public} if name}


def _answer(status: int, envelope: ErrorEnvelope, headers: dict[str, str] | None = None) -> JSONResponse:
    body = envelope.model_dump(mode="json")
    if body["problems"] is None:
        del body["problems"]
    return JSONResponse(body, status_code=status, headers=headers)


def _page(request: Request, status: int, message: str) -> Response | None:
    error_page: ErrorPage = request.app.state.error_page
    return error_page(request, status, message)


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    if (page := _page(request, error.status, error.message)) is not None:
        return page
    answer = _answer(error.status, error.envelope(), dict(error.headers))
    next_offset = getattr(error, "next_offset", None)
    if next_offset is None:
        return answer
    body = {**error.envelope().model_dump(mode="json", exclude_none=True), "next_offset": next_offset}
    return JSONResponse(body, status_code=error.status)


async def _validation_error(request: Request, error: Exception) -> Response:
    """pydantic's findings about a request, as one envelope that names the place."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    for detail in found:
        if detail["loc"][0] == "path":
            # What has not the form of an id is the id of nothing.
            return await _service_error(request, _no_such(str(detail["loc"][-1]), detail["input"]))
    first = found[0]
    loc = first["loc"][:2] if first["loc"][0] == "query" else first["loc"]
    place = ".".join(str(part) for part in loc if part not in ("body", "query", "path", "header", "[key]"))
    return await _service_error(request, InvalidRequestError(describe_error(first), param=place or None))


_THINGS = {"aid": "attempt", "digest": "code"}
"""What the parameters of paths name, where it is not their own first word."""


def _no_such(param: str, value: Any) -> NotFoundError:
    thing = _THINGS.get(param, param.removesuffix("_id"))
    return NotFoundError(f"there is no {thing} {value!r}", code=f"{thing}_not_found", param=param)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "There is no such page." if error.status_code == 404 else error.detail
    if (page := _page(request, error.status_code, message)) is not None:
        return page
    words = {404: "there is no such route", 405: "this route does not take that method"}
    body = ErrorBody(
        message=words.get(error.status_code, str(error.detail)),
        type=_TYPES.get(error.status_code, "server_error"),
        code={404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error"),
    )
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # The framework names the methods of the first route that fits the path.
        headers["Allow"] = ", ".join(methods_of(request.app.openapi(), request.url.path))
    return _answer(error.status_code, ErrorEnvelope(error=body), headers)
