"""The requests of users about saved views: list, save, change and delete."""

from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.audit.log import set_audit_target
from service.auth.principals import Principal
from service.core.errors import ConflictError, PermissionDeniedError
from service.core.ids import new_id
from service.core.resources import resource_of
from service.db.engine import Database
from service.db.models import SavedView
from service.db.paging import PageRequest
from service.jobs.service import require_change
from service.projects.repository import ProjectRepository
from service.projects.rules import require_submit
from service.views.repository import ViewRepository
from trainyard.contract.wire.views import ViewRequest, ViewResource

MAX_VIEWS = 100
"""Maximum number of saved views per user."""

_STATE = ("where", "sort", "columns", "group", "page")


def list_views(database: Database, principal: Principal, page: PageRequest) -> tuple[list[ViewResource], bool]:
    """Return a page of the caller's views and the shared views, newest first, and whether more follow."""
    with database.read() as session:
        rows, has_more = ViewRepository(session).list_page(principal.name, page)
    return [view_resource(row) for row in rows], has_more


def list_of_project(database: Database, principal: Principal, project: str) -> list[ViewResource]:
    """Return the views of a project that the caller sees, by name."""
    with database.read() as session:
        rows = ViewRepository(session).of_project(project, principal.name)
    return [view_resource(row) for row in rows]


def create(database: Database, principal: Principal, request: ViewRequest, now: datetime) -> ViewResource:
    """Save a new view. Raises ConflictError: the caller has a view of this name, or as many views as allowed."""
    require_change(principal)
    view = SavedView(id=new_id("view", now), created_by=principal.name, created_at=now)
    _fill(view, request, now)
    try:
        with database.write() as session:
            repository = ViewRepository(session)
            view.project = _project_of(session, principal, request)
            _require_unused(repository, principal.name, request.name, None)
            if repository.count_owned(principal.name) >= MAX_VIEWS:
                message = f"{principal.name} has {MAX_VIEWS} saved views, the limit per user; delete some first"
                raise ConflictError(message, code="too_many_views")
            repository.add(view)
            set_audit_target(view.id)
    except IntegrityError:  # Another request saved this name in the meantime.
        raise _name_taken(request.name) from None
    return view_resource(view)


def replace(
    database: Database, principal: Principal, view_id: str, request: ViewRequest, now: datetime
) -> ViewResource:
    """Replace a view.

    Raises:
        NotFoundError: there is no such view, or it is another user's and not shared.
        PermissionDeniedError: the view is another user's.
        ConflictError: its owner has another view of this name.
    """
    try:
        with database.write() as session:
            repository = ViewRepository(session)
            view = _owned(repository, principal, view_id)
            view.project = _project_of(session, principal, request)
            _require_unused(repository, view.created_by, request.name, view.id)
            _fill(view, request, now)
            session.flush()
    except IntegrityError:
        raise _name_taken(request.name) from None
    return view_resource(view)


def delete(database: Database, principal: Principal, view_id: str) -> None:
    """Delete a view. Raises as `replace`."""
    with database.write() as session:
        session.delete(_owned(ViewRepository(session), principal, view_id))


def view_resource(row: SavedView) -> ViewResource:
    return resource_of(ViewResource, row, **{name: row.state[name] for name in _STATE if name in row.state})


def _project_of(session: Session, principal: Principal, request: ViewRequest) -> str | None:
    """Return the project of a view as it was created.

    Raises:
        PermissionDeniedError: the caller is not a member of the project.
    """
    project = ProjectRepository(session).facts(request.project, principal)
    if request.project is not None:
        require_submit(principal, project)
    return request.project if project is None else project.name


def _owned(repository: ViewRepository, principal: Principal, view_id: str) -> SavedView:
    require_change(principal)
    is_admin = principal.role == "admin"
    view = repository.get(view_id, None if is_admin else principal.name)
    if not is_admin and view.created_by != principal.name:
        raise PermissionDeniedError(f"view {view.id} belongs to {view.created_by}")
    return view


def _fill(view: SavedView, request: ViewRequest, now: datetime) -> None:
    view.name, view.shared, view.updated_at = request.name, request.shared, now
    view.state = request.model_dump(mode="json", include=set(_STATE))


def _require_unused(repository: ViewRepository, user: str, name: str, own_id: str | None) -> None:
    present = repository.find(user, name)
    if present is not None and present.id != own_id:
        raise _name_taken(name)


def _name_taken(name: str) -> ConflictError:
    return ConflictError(f"there is a view {name!r} already; give another name, or replace it", code="view_exists")
