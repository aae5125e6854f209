"""The application that the service serves: the API, and the dashboard on top of it."""

from collections.abc import Sequence
from functools import partial

from fastapi import FastAPI, Request
from fastapi.responses import Response

from service.api.app import ROUTERS, create_api
from service.api.dependencies import AppState
from service.api.middleware.base_path import require_free
from service.api.plugin import Plugin
from service.api.routes.cluster import read_maintenance
from service.web.pages import (
    admin,
    cluster,
    compare,
    files,
    help,
    jobs,
    projects,
    sign_in,
    sign_in_code,
    submit,
)
from service.web.rendering import Pages, accepts_html


def create_app(app_state: AppState, plugins: Sequence[Plugin] = (), *, disabled: Sequence[Plugin] = ()) -> FastAPI:
    """Create the whole application on the given parts; nothing is started.

    Args:
        disabled: The plugins that are switched off.
    """
    base = app_state.settings.base_path
    sign_ins = [link for plugin in plugins for link in plugin.sign_ins(app_state.settings)]
    pages = Pages(partial(read_maintenance, app_state), base, plugins, sign_ins)
    app = create_api(app_state, plugins, partial(_error_page, pages), disabled=disabled)
    app.state.pages = pages
    modules = (sign_in, sign_in_code, jobs, admin, cluster, compare, files, help, projects, submit)
    routers = [*(module.router for module in modules), *(router for plugin in plugins for router in plugin.pages)]
    for router in routers:
        app.include_router(router)
    require_free(base, (*ROUTERS, *routers, *(router for plugin in plugins for router in plugin.routers)))
    return app


def _error_page(pages: Pages, request: Request, status: int, message: str) -> Response | None:
    """Return an error as a page for browsers; None for programs, which get JSON."""
    return pages.error(request, status, message) if accepts_html(request) else None
