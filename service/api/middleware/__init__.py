"""Pure ASGI middleware, a class for each concern: streams stay streams, and bodies are counted on arrival."""

from collections.abc import Iterable

from fastapi import FastAPI

from service.api.dependencies import AppState
from service.api.middleware.audit import AuditMiddleware
from service.api.middleware.authentication import AuthenticationMiddleware
from service.api.middleware.base_path import BasePathMiddleware
from service.api.middleware.body import BodyLimitMiddleware
from service.api.middleware.compression import CompressionMiddleware
from service.api.middleware.errors import ErrorMiddleware
from service.api.middleware.head import RequestHeadMiddleware
from service.api.middleware.origin import OriginMiddleware
from service.api.middleware.request_id import RequestIdMiddleware


def add_middleware(app: FastAPI, app_state: AppState, hosts: Iterable[str]) -> None:
    """Add all middleware to the application. Starlette runs the last added middleware first."""
    settings = app_state.settings
    app.add_middleware(CompressionMiddleware)
    app.add_middleware(ErrorMiddleware)
    app.add_middleware(BodyLimitMiddleware, limit=settings.body_limit)
    app.add_middleware(OriginMiddleware, hosts=hosts, public_url=settings.public_url)
    app.add_middleware(AuthenticationMiddleware, app_state=app_state)
    app.add_middleware(AuditMiddleware, audit_log=app_state.audit_log)
    app.add_middleware(RequestHeadMiddleware)
    app.add_middleware(RequestIdMiddleware, metrics=app_state.metrics, trusted_proxies=settings.trusted_proxies)
    if settings.base_path:
        app.add_middleware(BasePathMiddleware, base=settings.base_path)
