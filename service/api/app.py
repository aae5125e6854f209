"""The FastAPI application: routes, error responses and middleware."""

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from service.api.dependencies import AppState, get_caller, set_audit_caller
from service.api.middleware import add_middleware
from service.api.middleware.errors import ErrorPage
from service.api.openapi import add_openapi_route, common_errors, customize_openapi, methods_of
from service.api.plugin import Plugin, disabled_error, install, installed, is_api, rendered_by_plugin
from service.api.routes import (
    artifacts,
    checkpoints,
    cluster,
    code,
    files,
    jobs,
    logs,
    media,
    metrics,
    projects,
    secrets,
    sign_in,
    streams,
    tokens,
    usage,
    views,
    worker,
)
from service.api.routes.health import doctor_router
from service.api.routes.health import router as health
from service.api.routes.templates import router as templates
from service.api.routes.templates import templates_by_name
from service.core.errors import AttemptEndedError, InvalidRequestError, NotFoundError, ServiceError
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


ROUTERS = (
    worker.router,
    jobs.router,
    jobs.lost_router,
    logs.router,
    metrics.router,
    streams.router,
    templates,
    cluster.router,
    cluster.maintenance_router,
    cluster.orphans_router,
    code.router,
    files.router,
    files.uploads_router,
    artifacts.router,
    media.router,
    media.compared_router,
    checkpoints.router,
    usage.router,
    doctor_router,
    tokens.router,
    tokens.audit_router,
    sign_in.router,
    secrets.router,
    views.keys_router,
    views.router,
    projects.router,
    health,
)
"""Routes are matched in this order, and most requests come from workers."""


def create_api(
    app_state: AppState,
    plugins: Sequence[Plugin] = (),
    error_page: ErrorPage = lambda request, status, message: None,
    *,
    disabled: Sequence[Plugin] = (),
) -> FastAPI:
    """Create the application of the API on the given parts; nothing is started.

    Args:
        disabled: The plugins that are switched off. Nothing of them is added; an error about their paths tells why.
    """
    app = FastAPI(
        title="Trainyard",
        version=__version__,
        summary="Turns training specs into correct, resumable PyTorch runs.",
        responses=common_errors(),
        redirect_slashes=False,
        # FastAPI's pages load scripts from another site, which would run with the rights of a signed-in user.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        servers=[{"url": base}] if (base := app_state.settings.base_path) else None,
    )
    app.state.app_state = app_state
    app.state.error_page = error_page
    templates_by_name()
    for router in ROUTERS:
        app.include_router(router)
    install(app, app_state, plugins, disabled)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = _described(app.openapi)  # type: ignore[method-assign]
    add_openapi_route(app)
    add_middleware(app, app_state, known_hosts(app_state.settings))
    return app


def _described(openapi: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Return a function that completes the framework's OpenAPI document, once."""
    return cache(lambda: customize_openapi(openapi()))


def known_hosts(settings: Settings) -> Iterable[str]:
    """Return the host names of the service. Others are refused, so that no other site can rebind its name to it."""
    urls = [urlsplit(url).hostname or "" for url in (settings.local_url, settings.service_url, settings.worker_url)]
    listening = [f"[{host}]" if ":" in host else host for host in (*urls, settings.host)]
    own = {"localhost", "127.0.0.1", "[::1]", socket.gethostname(), socket.getfqdn()}
    return {name for name in {*own, *listening, *settings.allowed_hosts} if name}


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
    if isinstance(error, AttemptEndedError):
        # Other refusals of workers are part of normal operation and have no audit entry.
        set_audit_caller(request, get_caller(request).principal)
    # The address of a page has the parameters; a program reads the name of the wrong one in the envelope.
    is_named = isinstance(error, InvalidRequestError) and error.param
    text = f"{error.param}: {error.message}" if is_named else error.message
    if (page := _page(request, error.status, text)) is not None:
        page.headers.update(error.headers)
        return page
    if (plugin_response := rendered_by_plugin(error, request.scope)) is not None:
        status, document = plugin_response
        return JSONResponse(document, status_code=status, headers=dict(error.headers))
    answer = _answer(error.status, error.envelope(), dict(error.headers))
    next_offset = getattr(error, "next_offset", None)
    if next_offset is None:
        return answer
    body = {**error.envelope().model_dump(mode="json", exclude_none=True), "next_offset": next_offset}
    return JSONResponse(body, status_code=error.status)


async def _validation_error(request: Request, error: Exception) -> Response:
    """Return the first validation error as an envelope that names the field."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    for detail in errors:
        if detail["loc"][0] == "path":
            # A malformed id belongs to no resource.
            return await _service_error(request, _not_found(str(detail["loc"][-1]), detail["input"]))
    first = errors[0]
    if first["loc"] == ("body",) and isinstance(first.get("input"), bytes):
        # FastAPI parses a body only if the header names JSON.
        return await _service_error(
            request, InvalidRequestError("send the header `Content-Type: application/json` with a JSON body")
        )
    loc = first["loc"][:2] if first["loc"][0] == "query" else first["loc"]
    field = ".".join(str(part) for part in loc if part not in ("body", "query", "path", "header", "[key]"))
    return await _service_error(request, InvalidRequestError(describe_error(first), param=field or None))


_RESOURCES = {
    "aid": "attempt",
    "alias": "alias",
    "digest": "code",
    "member": "member",
    "model_name": "model",
    "node": "node",
    "oidc_user": "oidc_user",
    "project": "project",
    "secret_name": "secret",
    "version": "model_version",
    "user_name": "unix_user",
}
"""Resources by path parameter, where the parameter is not named after its resource."""


def _not_found(param: str, value: Any) -> NotFoundError:
    resource = _RESOURCES.get(param, param.removesuffix("_id"))
    return NotFoundError(f"there is no {resource} {value!r}", code=f"{resource}_not_found", param=param)


def _path_hint(request: Request) -> str:
    """Return a hint for a client that is configured with a wrong path of the service."""
    path, api, _ = request.url.path.partition("/v1/")
    if not api or is_api(request.scope, f"{path}/v1/"):
        return ""
    app_state: AppState = request.app.state.app_state
    return f"; the URL of this service is {app_state.settings.service_url}, without {path[:200]}"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and (disabled := disabled_error(request.scope)) is not None:
        return await _service_error(request, disabled)
    message = "Page not found." if error.status_code == 404 else error.detail
    if (page := _page(request, error.status_code, message)) is not None:
        return page
    hints = (plugin.hint(request.url.path) for plugin in installed(request.scope))
    messages = {
        404: f"unknown route{_path_hint(request) or next(filter(None, hints), '')}",
        405: "the route does not support this method",
    }
    body = ErrorBody(
        message=messages.get(error.status_code, str(error.detail)),
        type=_TYPES.get(error.status_code, "server_error"),
        code={404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error"),
    )
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # The framework lists only the methods of the first route that matches the path.
        headers["Allow"] = ", ".join(methods_of(request.app.openapi(), request.url.path))
    return _answer(error.status_code, ErrorEnvelope(error=body), headers)
