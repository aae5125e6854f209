"""What all worlds of a test process share, because it depends on no world and takes long to make."""

import os
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from threading import Thread
from typing import Any
from unittest.mock import patch

import anyio
import httpx
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic_settings import PydanticBaseSettingsSource
from starlette.types import Receive, Scope, Send

from service.api.dependencies import AppState
from service.api.plugin import Plugin
from service.core.settings import Settings
from service.db.engine import Database
from service.plugins.installed import PLUGINS
from service.web.app import create_app

_first_apps: dict[tuple[str, ...], FastAPI] = {}
"""The first application with each selection of plugins."""
_first_engines: dict[str, sa.Engine] = {}
_compiled: dict[Any, Any] = {}


def _add_nothing(*_arguments: Any, **_options: Any) -> None:
    """Stand in for what adds routes."""


def app_with_shared_routes(
    app_state: AppState, plugins: Sequence[Plugin] = PLUGINS, disabled: Sequence[Plugin] = ()
) -> FastAPI:
    """The application on the given state, with the routes and the OpenAPI document of the session's first one.

    FastAPI builds its route tables at the first request to an application, which takes 0.1 s or more of CPU time.
    Only middleware, exception handlers and `state` belong to one application; they are made anew here.
    """
    selection = tuple(plugin.name for plugin in plugins)
    if selection not in _first_apps:
        _first_apps[selection] = create_app(app_state, plugins, disabled=disabled)
        return _first_apps[selection]
    with patch.multiple(FastAPI, include_router=_add_nothing, add_api_route=_add_nothing):
        app = create_app(app_state, plugins, disabled=disabled)
    app.router = _first_apps[selection].router
    app.openapi = _first_apps[selection].openapi  # type: ignore[method-assign]
    return app


class SettingsWithoutEnvironment(Settings):
    """The settings that the test gives; the variables of the process and their parsing are left out."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: Any, init_settings: PydanticBaseSettingsSource, *_sources: Any, **_more: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@cache
def _make_anew_in_forks() -> None:
    """Let a fork of this process start its own event loop and connections: it has no threads of its parent."""

    def forget() -> None:
        _requests_loop.cache_clear()
        for engine in _first_engines.values():
            if engine.dialect.name == "postgresql":
                engine.dispose(close=False)

    os.register_at_fork(after_in_child=forget)


class WorldDatabase(Database):
    """A database that shares what is costly to make: compiled SQL, and on Postgres the connections.

    Each engine compiles its own SQL otherwise, and each process of Postgres reads the catalog first. Compiled SQL
    belongs to a dialect, which is therefore shared too; the engine that connects first has set it up.
    """

    def __init__(self, url: str):
        super().__init__(url)
        _make_anew_in_forks()
        if self.dialect == "postgresql":
            self._reader = self._writer = _first_engines.setdefault(url, self._writer)
        for engine in (self._writer, self._reader):
            engine.dialect = _first_engines.setdefault(engine.dialect.name, engine).dialect
            engine.update_execution_options(compiled_cache=_compiled)
            if self.dialect == "sqlite":
                # No test switches the machine off.
                sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))

    def dispose(self) -> None:
        """Close the connections that no other world uses."""
        if self.dialect == "sqlite":
            super().dispose()


@cache
def trusted_authorities() -> ssl.SSLContext:
    """Return the public certificate authorities, which take longer to read than a request."""
    return httpx.create_ssl_context()


@cache
def _requests_loop() -> BlockingPortal:
    """Start an event loop in a thread, which runs until the process ends."""
    started: Future[BlockingPortal] = Future()

    async def run() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    Thread(target=anyio.run, args=(run,), name="requests", daemon=True).start()
    return started.result()


class SharedLoopClient(TestClient):
    """Runs all requests in one event loop; Starlette's client starts a thread and a loop for each request."""

    @contextmanager
    def _portal_factory(self) -> Iterator[BlockingPortal]:
        yield _requests_loop()


def ending_requests_only(app: FastAPI) -> Any:
    """Return the application, where a SystemExit of a failpoint ends the request and not the shared event loop."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except SystemExit as error:
            raise RuntimeError("a failpoint has ended the request") from error

    return run
