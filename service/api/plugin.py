"""Plugins: parts of the service that can be switched off. The core imports none of them.

A `Plugin` states what a part adds: routes, pages, background tasks, listeners, checks. `service.plugins.installed`
lists the plugins of a release, and the composition root passes them to what adds their parts. Pages of the core have
slots for the parts of plugins, and link to the pages of resources; they know no plugin by its name.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.types import Scope

from service.api.dependencies import AppState
from service.auth.principals import Principal
from service.core.errors import NotFoundError, ServiceError
from service.core.periodic_task import PeriodicTask
from service.core.settings import Settings
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.listeners import ChangeListener
from service.scheduler.base import Scheduler
from service.specs.acceptance import ModelAdvisor, NoAdvisor
from trainyard.contract.wire.diagnostics import Finding

ErrorRenderer = Callable[[ServiceError], tuple[int, Mapping[str, Any]]]
"""Returns the status and the JSON document of an error."""


@dataclass(frozen=True)
class PageLink:
    """A page, with the text of the link to it."""

    path: str
    label: str


@dataclass(frozen=True)
class Shortcut:
    """A keyboard shortcut of all pages: `g` and a key open a page."""

    key: str
    path: str
    label: str


@dataclass(frozen=True)
class PagePart:
    """What a plugin adds to a page of the core."""

    slots: Mapping[str, str] = field(default_factory=dict)
    """Templates by the slot of the page that includes them."""
    script: str = ""
    """The module that makes them work; it imports from the page's own script."""
    style: str = ""


@dataclass(frozen=True)
class RunGroup:
    """A group of runs in a list of links."""

    id: str
    name: str
    description: str
    created_at: datetime


@dataclass(frozen=True)
class RunGroups:
    """Groups of runs that can be compared, such as sweeps: `/compare?<parameter>=<id>` is the page of one."""

    parameter: str
    title: str
    """The heading of a list of groups."""
    compare: Callable[[Any, str], HTMLResponse]
    """Renders the requested `ComparisonPage` with the runs of the group that has an id."""
    list_recent: Callable[[AppState, int], Sequence[RunGroup]]
    """Returns so many groups, newest first."""


AfterSignOut = Callable[[AppState, Principal], Awaitable[str]]
"""Returns the address of another site that the browser opens next, to end the user's session there; empty: none. The
arguments are the state and the user of the session that has ended. It raises no error, as the user is signed out."""


@dataclass(frozen=True)
class Plugin:
    """What a part of the service adds to the core. The application adds it; nothing else refers to it."""

    name: str
    """Its name in the setting `disabled_plugins`."""
    prefixes: Sequence[str]
    """The beginnings of the paths of its API. Its clients send a token, as for all of `/v1`."""
    routers: Sequence[APIRouter]
    """The routes of its API, in the order in which they are matched."""
    render_error: ErrorRenderer | None = None
    """Renders the errors of its API; None: they have the form of `/v1`."""
    hint: Callable[[str], str] = lambda path: ""
    """Returns the rest of the message about an unknown path of the service, if its clients may mean this API."""
    project_paths: Sequence[str] = ()
    """The beginnings of the paths of its API that a project token can use: all that they read and change are
    jobs, and what the visibility of jobs decides."""
    body_limits: Mapping[str, int] = field(default_factory=dict)
    """Maximum sizes of bodies in bytes, by path; for other paths, the limit of a spec."""
    make_part: Callable[[AppState], Any] = lambda app_state: None
    """Makes the object that its routes and tasks share, `app_state.plugin_parts[name]`."""
    make_advisor: Callable[[AppState], ModelAdvisor] | None = None
    """Makes the object that advises the acceptance of specs. At most one plugin has one."""
    checks: Sequence[Callable[[Settings], Finding]] = ()
    """Checks of the installation."""
    listeners: Sequence[ChangeListener] = ()
    """Are called within the transactions of changes."""
    make_tasks: Callable[[AppState, LeaderLease], Sequence[PeriodicTask]] = lambda app_state, lease: ()
    """Makes the tasks that run in the background of the leader."""
    make_scheduler_work: Callable[[AppState, Scheduler, LeaderLease], Sequence[Callable[[], bool]]] = (
        lambda app_state, scheduler, lease: ()
    )
    """Makes requests to the scheduler, which the reconciler calls in each tick; each returns whether more wait."""
    delete_old: Callable[[Database, Settings, datetime], None] = lambda database, settings, now: None
    """Deletes a batch of its rows that exceed their retention at a time; the maintenance task calls it, also if the
    plugin is switched off."""
    pages: Sequence[APIRouter] = ()
    """The routes of its pages."""
    resource_pages: Mapping[str, str] = field(default_factory=dict)
    """Addresses of its pages about resources, by the kind of a resource: `{id}` stands for the id of one. Pages of the
    core link to them."""
    shortcuts: Sequence[Shortcut] = ()
    navigation: Sequence[PageLink] = ()
    """The pages of `pages` to which the navigation links."""
    admin_tabs: Sequence[PageLink] = ()
    """The pages of `pages` that administrators see as tabs."""
    page_parts: Mapping[str, PagePart] = field(default_factory=dict)
    """What it adds to pages of the core, by the template of the page."""
    sign_ins: Callable[[Settings], Sequence[PageLink]] = lambda settings: ()
    """Returns further ways to sign in, to which the sign-in page links with the parameter `next`, the page to open."""
    after_sign_out: AfterSignOut | None = None
    """Is called when a user signs out in a browser, after the end of the session."""
    run_groups: Sequence[RunGroups] = ()
    """The groups of runs that the page `/compare` shows."""
    templates: str | None = None
    """The package that has the templates of its pages in a folder `templates`. Their scripts and styles are in the
    folder `static` beside it, which the dashboard serves together with its own."""

    def has_path(self, path: str) -> bool:
        """Return whether a path belongs to its API or its pages."""
        paths = (*self.prefixes, *(link.path for link in (*self.navigation, *self.admin_tabs)))
        return any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in paths)


def install(app: FastAPI, app_state: AppState, plugins: Sequence[Plugin], disabled: Sequence[Plugin]) -> None:
    """Add the plugins to an application; their routes come after the routes that it has.

    Args:
        disabled: Plugins whose paths get an error that names the setting by which they are switched off.
    """
    app.state.plugins, app.state.disabled_plugins = tuple(plugins), tuple(disabled)
    for plugin in plugins:
        if plugin.name not in app_state.plugin_parts:
            app_state.plugin_parts[plugin.name] = plugin.make_part(app_state)
        for router in plugin.routers:
            app.include_router(router)
    advisors = [plugin.make_advisor(app_state) for plugin in plugins if plugin.make_advisor is not None]
    app_state.advisor = advisors[0] if advisors else NoAdvisor()
    app_state.database.listeners = tuple(listener for plugin in plugins for listener in plugin.listeners)


def installed(scope: Scope) -> tuple[Plugin, ...]:
    """Return the plugins of the application that a request was sent to."""
    plugins: tuple[Plugin, ...] = scope["app"].state.plugins
    return plugins


def disabled_error(scope: Scope) -> ServiceError | None:
    """Return the error about the path of a request; None if it is not a path of a plugin that is switched off."""
    disabled: tuple[Plugin, ...] = scope["app"].state.disabled_plugins
    name = next((plugin.name for plugin in disabled if plugin.has_path(scope["path"])), None)
    return None if name is None else _disabled(name)


def _disabled(name: str) -> ServiceError:
    message = f"the plugin `{name}` is switched off on this service, by its setting TRAINYARD_DISABLED_PLUGINS"
    return NotFoundError(message, code="plugin_disabled")


def named_group(request: Request) -> tuple[RunGroups, str] | None:
    """Return the group of runs that the query of a request names.

    Raises:
        ServiceError: it belongs to a plugin that is switched off.
    """
    for plugin in (*installed(request.scope), *request.app.state.disabled_plugins):
        for groups in plugin.run_groups:
            if group_id := request.query_params.get(groups.parameter):
                if plugin in request.app.state.disabled_plugins:
                    raise _disabled(plugin.name)
                return groups, group_id
    return None


async def next_sign_out(scope: Scope, app_state: AppState, user: Principal) -> str:
    """Return the address of another site where the user of a session that has ended signs out too; empty: none."""
    for plugin in installed(scope):
        if plugin.after_sign_out is not None and (address := await plugin.after_sign_out(app_state, user)):
            return address
    return ""


def plugin_of(scope: Scope) -> Plugin | None:
    """Return the plugin to which the path of a request belongs."""
    return next((plugin for plugin in installed(scope) if scope["path"].startswith(tuple(plugin.prefixes))), None)


def rendered_by_plugin(error: ServiceError, scope: Scope) -> tuple[int, Mapping[str, Any]] | None:
    """Return the status and the document of an error in the form of the plugin that a request was sent to.

    Returns:
        None if the error has the form of `/v1`.
    """
    plugin = plugin_of(scope)
    return plugin.render_error(error) if plugin is not None and plugin.render_error is not None else None


def is_api(scope: Scope, path: str | None = None) -> bool:
    """Return whether a path belongs to an API, whose clients send a token, and not to the dashboard.

    Args:
        path: The path; None: the path of the request.
    """
    prefixes = [prefix for plugin in installed(scope) for prefix in plugin.prefixes]
    return (path or scope["path"]).startswith(("/v1/", *prefixes))
