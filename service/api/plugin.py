"""Plugins: APIs beside `/v1` that can be switched off, each with its own paths and form of errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import Scope

from service.api.dependencies import AppState
from service.core.errors import ServiceError
from service.core.settings import Settings
from trainyard.contract.wire.diagnostics import Finding


@dataclass(frozen=True)
class Plugin:
    """An API beside `/v1`. The application adds its parts; nothing else refers to it."""

    name: str
    """Its name in the setting `disabled_plugins`."""
    prefix: str
    """The beginning of its paths. Its clients send a token, as for `/v1`."""
    routers: Sequence[APIRouter]
    """Its routes, in the order in which they are matched."""
    render_error: Callable[[ServiceError], tuple[int, Mapping[str, Any]]]
    """Returns the status and the JSON document of an error."""
    hint: Callable[[str], str] = lambda path: ""
    """Returns the rest of the message about an unknown path of the service, if its clients may mean this API."""
    body_limits: Mapping[str, int] = field(default_factory=dict)
    """Maximum sizes of bodies in bytes, by path; for other paths, the limit of a spec."""
    make_part: Callable[[AppState], Any] = lambda app_state: None
    """Makes the object that its routes share, `app.state.plugin_parts[name]`."""
    checks: Sequence[Callable[[Settings], Finding]] = ()
    """Checks of the installation."""


def install(app: FastAPI, app_state: AppState, plugins: Sequence[Plugin]) -> None:
    """Add the plugins to an application; their routes come after the routes that it has."""
    app.state.plugins = tuple(plugins)
    app.state.plugin_parts = {plugin.name: plugin.make_part(app_state) for plugin in plugins}
    for plugin in plugins:
        for router in plugin.routers:
            app.include_router(router)


def installed(scope: Scope) -> tuple[Plugin, ...]:
    """Return the plugins of the application that a request was sent to."""
    plugins: tuple[Plugin, ...] = scope["app"].state.plugins
    return plugins


def plugin_of(scope: Scope) -> Plugin | None:
    """Return the plugin to which the path of a request belongs."""
    return next((plugin for plugin in installed(scope) if scope["path"].startswith(plugin.prefix)), None)


def is_api(scope: Scope, path: str | None = None) -> bool:
    """Return whether a path belongs to an API, whose clients send a token, and not to the dashboard.

    Args:
        path: The path; None: the path of the request.
    """
    return (path or scope["path"]).startswith(("/v1/", *(plugin.prefix for plugin in installed(scope))))
