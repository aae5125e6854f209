"""Orphans: listing them, and requests of administrators about them. The reconciler finds them and acts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa

from service.auth.repository import TokenRepository
from service.core.errors import ConflictError, InvalidRequestError
from service.core.resources import resource_of
from service.db.engine import Database
from service.db.models import Orphan
from service.db.repository import Repository, require_row
from trainyard.contract.wire.orphans import OrphanRequest, OrphanResource


@dataclass(frozen=True)
class UnknownEntry:
    """An orphan as the reconciler has just observed it; the fields match the table."""

    id: str
    job_id: str | None = None
    name: str | None = None
    created_by: str | None = None
    tag: str | None = None
    scheduler_id: str | None = None
    state: str | None = None
    folder: str | None = None


class OrphanRepository(Repository):
    """Orphans within a session."""

    def list_all(self) -> list[Orphan]:
        return list(self._session.scalars(sa.select(Orphan).order_by(Orphan.first_observed_at, Orphan.id)))

    def list_requested(self) -> list[Orphan]:
        return list(self._session.scalars(sa.select(Orphan).where(Orphan.requested.is_not(None)).order_by(Orphan.id)))

    def counts(self) -> Mapping[str, int]:
        """Return the number of orphans in the scheduler's queue, and the number that are only on disk."""
        in_queue = sa.func.count(Orphan.scheduler_id)
        queued, total = self._session.execute(sa.select(in_queue, sa.func.count()).select_from(Orphan)).one()
        return {"queue": queued, "disk": total - queued}

    def require(self, orphan_id: str) -> Orphan:
        """Raises NotFoundError."""
        return require_row(self._session.get(Orphan, orphan_id), "orphan", orphan_id)

    def replace(self, entries: Mapping[str, UnknownEntry], now: datetime) -> list[UnknownEntry]:
        """Store exactly these orphans; requests about them remain. Return the new orphans."""
        for row in self.list_all():
            entry = entries.get(row.id)
            if entry is None:
                self._session.delete(row)
                continue
            for field, value in asdict(entry).items():
                setattr(row, field, value)
            if row.requested == "cancel" and row.scheduler_id is None:
                row.requested = None
        known = {row.id for row in self.list_all()}
        new = [entry for entry in entries.values() if entry.id not in known]
        self._session.add_all(Orphan(**asdict(entry), first_observed_at=now, message="") for entry in new)
        return new


def list_orphans(database: Database) -> list[OrphanResource]:
    """Return all orphans in the order of their first observation."""
    with database.read() as session:
        return [orphan_resource(row) for row in OrphanRepository(session).list_all()]


def request(database: Database, orphan_id: str, action: OrphanRequest, by: str, now: datetime) -> OrphanResource:
    """Store an administrator's request; the reconciler carries it out in its next tick.

    Raises:
        NotFoundError: There is no such orphan.
        ConflictError: It is not in the queue and cannot be cancelled, or has no run directory and cannot be adopted.
        InvalidRequestError: The new owner is no user who may submit jobs.
    """
    with database.write() as session:
        row = OrphanRepository(session).require(orphan_id)
        if action.action == "cancel" and row.scheduler_id is None:
            raise ConflictError(f"{orphan_id} is not in the scheduler's queue", code="not_in_queue")
        if action.action == "adopt" and row.job_id is None:
            raise ConflictError(f"the run directory of {orphan_id} is unknown", code="no_run_directory")
        if action.owner is not None and TokenRepository(session).submitter_role(action.owner, now) is None:
            message = f"no valid token of a user or an administrator has the name {action.owner!r}"
            raise InvalidRequestError(message, param="owner")
        row.requested, row.requested_by, row.owner, row.message = action.action, by, action.owner, ""
        return orphan_resource(row)


def orphan_resource(row: Orphan) -> OrphanResource:
    return resource_of(OrphanResource, row)
