"""SQL of the audit log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from service.db.models import AuditEntry
from service.db.repository import Repository


@dataclass(frozen=True)
class AuditFilter:
    """A filter of audit entries; a field that is None matches all."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        pairs = (
            (AuditEntry.actor, self.actor),
            (AuditEntry.action, self.action),
            (AuditEntry.target, self.target),
            (AuditEntry.outcome, self.outcome),
        )
        conditions = [column == value for column, value in pairs if value is not None]
        if self.created_after is not None:
            conditions.append(AuditEntry.created_at >= self.created_after)
        if self.created_before is not None:
            conditions.append(AuditEntry.created_at < self.created_before)
        return conditions


class AuditRepository(Repository):
    """Audit entries within a session."""

    def page(
        self, matching: AuditFilter, *, after: int | None, limit: int, descending: bool
    ) -> tuple[Sequence[AuditEntry], bool]:
        """Return a page in the order of writing, and whether more entries follow."""
        query = sa.select(AuditEntry).where(*matching.conditions())
        if after is not None:
            query = query.where(AuditEntry.pk < after if descending else AuditEntry.pk > after)
        order = AuditEntry.pk.desc() if descending else AuditEntry.pk.asc()
        rows = list(self._session.scalars(query.order_by(order).limit(limit + 1)))
        return rows[:limit], len(rows) > limit

    def keys_before(self, time: datetime, limit: int) -> Sequence[int]:
        """Return the keys of at most `limit` entries that were created before a time, oldest first."""
        old = sa.select(AuditEntry.pk).where(AuditEntry.created_at < time).order_by(AuditEntry.pk).limit(limit)
        return self._session.scalars(old).all()

    def delete(self, keys: Sequence[int]) -> None:
        self._session.execute(sa.delete(AuditEntry).where(AuditEntry.pk.in_(keys)))
