"""All SQL about saved views."""

from collections.abc import Sequence

import sqlalchemy as sa

from service.core.errors import NotFoundError
from service.db.models import SavedView
from service.db.paging import PageRequest, fetch_page
from service.db.repository import Repository

_MAX_OF_PROJECT = 200


class ViewRepository(Repository):
    """Saved views within a session."""

    def list_page(self, user: str, page: PageRequest) -> tuple[list[SavedView], bool]:
        """Return a page of a user's views and the shared views, and whether more follow."""
        query = sa.select(SavedView).where(sa.or_(SavedView.created_by == user, SavedView.shared))
        return fetch_page(self._session, query, SavedView.id, page)

    def of_project(self, project: str, user: str) -> Sequence[SavedView]:
        """Return the views of a project that a user sees, by name."""
        query = sa.select(SavedView).where(SavedView.project == project)
        query = query.where(sa.or_(SavedView.created_by == user, SavedView.shared))
        return self._session.scalars(query.order_by(SavedView.name, SavedView.id).limit(_MAX_OF_PROJECT)).all()

    def get(self, view_id: str, user: str | None) -> SavedView:
        """Return a view of the user, or a shared view; None: anyone's.

        Raises:
            NotFoundError: there is none, or it is another user's and not shared.
        """
        row = self._session.get(SavedView, view_id)
        if row is None or (user is not None and row.created_by != user and not row.shared):
            raise NotFoundError(f"there is no view {view_id!r}", code="view_not_found", param="view_id")
        return row

    def count_owned(self, user: str) -> int:
        query = sa.select(sa.func.count()).select_from(SavedView).where(SavedView.created_by == user)
        return self._session.scalar(query) or 0

    def find(self, user: str, name: str) -> SavedView | None:
        return self._session.scalar(sa.select(SavedView).where(SavedView.created_by == user, SavedView.name == name))

    def add(self, view: SavedView) -> None:
        self._session.add(view)
        self._session.flush()
