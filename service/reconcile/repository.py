"""All SQL about the reconciler's lease."""

from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Lease


class LeaseRepository:
    """Leases within one session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def take(self, name: str, owner: str, now: datetime, expires_at: datetime) -> bool:
        """Compare and set: ours already, or free; a change of hands raises the term."""
        row = {"name": name, "owner": owner, "term": 1, "expires_at": expires_at}
        made = self._run(self._database.insert(Lease).values(row).on_conflict_do_nothing())
        if made:
            return True
        renewed = self._run(
            sa.update(Lease).where(Lease.name == name, Lease.owner == owner).values(expires_at=expires_at)
        )
        if renewed:
            return True
        expired = sa.update(Lease).where(Lease.name == name, Lease.expires_at < now)
        return self._run(expired.values(owner=owner, term=Lease.term + 1, expires_at=expires_at))

    def expire(self, name: str, owner: str, now: datetime) -> None:
        self._run(sa.update(Lease).where(Lease.name == name, Lease.owner == owner).values(expires_at=now))

    def _run(self, statement: Any) -> bool:
        result = self._session.execute(statement.execution_options(synchronize_session=False))
        return cast(sa.CursorResult[Any], result).rowcount == 1
