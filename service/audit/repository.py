"""SQL of the audit log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.models import AuditEntry


@dataclass(frozen=True)
class AuditFilter:
    """Which entries are wanted; what is left out matches all."""

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
        found = [column == value for column, value in pairs if value is not None]
        if self.created_after is not None:
            found.append(AuditEntry.created_at >= self.created_after)
        if self.created_before is not None:
            found.append(AuditEntry.created_at < self.created_before)
        return found


class AuditRepository:
    """The audit within one session."""

    def __init__(self, session: Session):
        self._session = session

    def add(self, entry: AuditEntry) -> None:
        self._session.add(entry)

    def page(
        self, wanted: AuditFilter, *, after: int | None, limit: int, descending: bool
    ) -> tuple[Sequence[AuditEntry], bool]:
        """One page in order of writing, and whether there is more."""
        query = sa.select(AuditEntry).where(*wanted.conditions())
        if after is not None:
            query = query.where(AuditEntry.pk < after if descending else AuditEntry.pk > after)
        order = AuditEntry.pk.desc() if descending else AuditEntry.pk.asc()
        rows = list(self._session.scalars(query.order_by(order).limit(limit + 1)))
        return rows[:limit], len(rows) > limit

    def older(self, than: datetime, limit: int) -> Sequence[int]:
        """Some of the entries that are."""
        old = sa.select(AuditEntry.pk).where(AuditEntry.created_at < than).order_by(AuditEntry.pk).limit(limit)
        return self._session.scalars(old).all()

    def forget(self, numbers: Sequence[int]) -> None:
        self._session.execute(sa.delete(AuditEntry).where(AuditEntry.pk.in_(numbers)))
