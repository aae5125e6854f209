"""All SQL about registered models."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from service.core.errors import NotFoundError
from service.db.engine import Database
from service.db.models import ModelVersion, RegisteredModel
from service.db.paging import PageRequest, fetch_page
from service.db.repository import Repository


class RegistryRepository(Repository):
    """Registered models within a session."""

    def get(self, name: str) -> RegisteredModel:
        """Raises NotFoundError."""
        return _required(self._session.get(RegisteredModel, name), name)

    def get_for_update(self, name: str) -> RegisteredModel:
        """Return the current row and lock it: other writers of the model wait until this transaction ends.

        Raises:
            NotFoundError: There is no such model.
        """
        query = sa.select(RegisteredModel).where(RegisteredModel.name == name).with_for_update()
        return _required(self._session.scalar(query.execution_options(populate_existing=True)), name)

    def owner_of(self, name: str) -> str | None:
        """Return the owner of a model, even if the caller cannot see the model; None if the name is free."""
        table = RegisteredModel.__table__
        owner: str | None = self._session.execute(
            sa.select(table.c.created_by).where(table.c.name == name)
        ).scalar_one_or_none()
        return owner

    def is_visible(self, name: str) -> bool:
        """Return whether the caller can see a model."""
        return self._session.scalar(sa.select(RegisteredModel.name).where(RegisteredModel.name == name)) is not None

    def create(self, database: Database, name: str, owner: str, now: datetime) -> None:
        """Create a model unless the name is taken."""
        row = {"name": name, "description": "", "created_by": owner, "created_at": now, "updated_at": now}
        values = {**row, "last_version": 0, "aliases": {}}
        self._session.execute(database.insert(RegisteredModel).values(values).on_conflict_do_nothing())

    def count_owned(self, owner: str) -> int:
        query = sa.select(sa.func.count()).select_from(RegisteredModel).where(RegisteredModel.created_by == owner)
        return self._session.scalar(query) or 0

    def list_page(self, page: PageRequest) -> tuple[list[RegisteredModel], bool]:
        """Return a page by name, and whether more follow."""
        return fetch_page(self._session, sa.select(RegisteredModel), RegisteredModel.name, page)

    def visible_numbers(self, names: Sequence[str]) -> dict[str, set[int]]:
        """Return the versions that the caller sees, of each model that has any."""
        query = sa.select(ModelVersion.model, ModelVersion.number).where(ModelVersion.model.in_(names))
        numbers: dict[str, set[int]] = {}
        for name, number in self._session.execute(query):
            numbers.setdefault(name, set()).add(number)
        return numbers

    def list_versions(self, name: str) -> list[ModelVersion]:
        """Return the versions, newest first."""
        query = sa.select(ModelVersion).where(ModelVersion.model == name).order_by(ModelVersion.number.desc())
        return list(self._session.scalars(query))

    def find_version(self, name: str, job_id: str, checkpoint_id: str | None) -> ModelVersion | None:
        """Return the version that is this export or checkpoint of a job."""
        query = sa.select(ModelVersion).where(ModelVersion.model == name, ModelVersion.job_id == job_id)
        of_checkpoint = ModelVersion.checkpoint_id
        condition = of_checkpoint.is_(None) if checkpoint_id is None else of_checkpoint == checkpoint_id
        return self._session.scalar(query.where(condition))

    def get_version(self, name: str, number: int) -> ModelVersion:
        """Raises NotFoundError."""
        row = self._session.get(ModelVersion, (name, number))
        if row is None:
            raise NotFoundError(
                f"model {name!r} has no version {number}", code="model_version_not_found", param="version"
            )
        return row


def _required(row: RegisteredModel | None, name: str) -> RegisteredModel:
    if row is None:
        raise NotFoundError(f"there is no model {name!r}", code="model_not_found", param="model_name")
    return row
