"""All SQL about the reconciler's lease, and about what it is to hear of."""

from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Event, Lease


class LeaseRepository:
    """Leases within one session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def take(
        self, name: str, owner: str, now: datetime, expires_at: datetime, *, abandoned: datetime | None = None
    ) -> int | None:
        """Compare and set: ours already, or free; the term, which every change of hands raises, or None.

        Args:
            abandoned: free as well, if it is still to expire at this very moment.
        """
        row = {"name": name, "owner": owner, "term": 1, "expires_at": expires_at}
        mine = sa.update(Lease).where(Lease.name == name, Lease.owner == owner).values(expires_at=expires_at)
        free = sa.or_(Lease.expires_at <= now, Lease.expires_at == abandoned)
        expired = sa.update(Lease).where(Lease.name == name, free)
        taken = expired.values(owner=owner, term=Lease.term + 1, expires_at=expires_at)
        if not (self._run(mine) or self._run(taken)):
            # The very first time there is no row; who inserts it then renews it.
            self._session.execute(self._database.insert(Lease).values(row).on_conflict_do_nothing())
            if not self._run(mine):
                return None
        return self._session.scalar(sa.select(Lease.term).where(Lease.name == name))

    def expires_at(self, name: str) -> datetime | None:
        return self._session.scalar(sa.select(Lease.expires_at).where(Lease.name == name))

    def holds(self, name: str, owner: str, term: int) -> bool:
        """Whether the lease is still that of this term; it stays so until the transaction ends."""
        query = sa.select(Lease.term).where(Lease.name == name, Lease.owner == owner, Lease.term == term)
        return self._session.scalar(query.with_for_update(read=True)) is not None

    def expire(self, name: str, owner: str, now: datetime) -> None:
        self._run(sa.update(Lease).where(Lease.name == name, Lease.owner == owner).values(expires_at=now))

    def _run(self, statement: Any) -> bool:
        result = self._session.execute(statement.execution_options(synchronize_session=False))
        return cast(sa.CursorResult[Any], result).rowcount == 1


_LOOKED_AT = 1000


class NewsRepository:
    """The jobs' histories within one session."""

    def __init__(self, session: Session):
        self._session = session

    def newest(self) -> tuple[int, int]:
        """The newest line's number, and how many of those just before it are there: one that was numbered earlier may
        be committed later."""
        last = self._session.scalar(sa.select(sa.func.max(Event.pk))) or 0
        recent = sa.select(sa.func.count()).select_from(Event).where(Event.pk > last - _LOOKED_AT)
        return last, self._session.scalar(recent) or 0
