"""The leader lease: a row lets exactly one service reconcile, and its term fences writes of former leaders."""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.clock import is_due
from service.core.errors import LeaseLostError
from service.db.engine import Database
from service.db.models import Lease

TTL = timedelta(seconds=15)
_RENEW_AFTER = timedelta(seconds=1)
_NAME = "reconciler"
_HELD_TERM = (
    sa.select(Lease.term)
    .where(Lease.name == _NAME, Lease.owner == sa.bindparam("owner"), Lease.term == sa.bindparam("term"))
    .with_for_update(read=True)
)
"""Runs in each transaction of the leader, and is therefore built once."""


@dataclass
class LeaderLease:
    """One owner's claim on leadership; `acquire` renews it at every tick, `renew` during a long tick."""

    database: Database
    owner: str
    term: int | None = None
    """The term of the last successful `acquire`; None while another service is the leader."""
    renewed_at: datetime | None = None
    rival_expiry: tuple[datetime, datetime] | None = None
    """While another service leads: its expiry time (its clock), and when this process first read that value."""
    writes: int = 0
    """Fenced transactions so far. A tick that leaves this unchanged has changed nothing."""

    @property
    def is_leader(self) -> bool:
        """Whether the last `acquire` succeeded. Only `write` proves that it still holds."""
        return self.term is not None

    def acquire(self, now: datetime) -> bool:
        """Take or renew the lease; False while another service holds it.

        A lease renewed less than a second ago is not renewed again, because each write checks it anyway.
        """
        if not is_due(self.renewed_at, now, _RENEW_AFTER):
            return True
        with self.database.write() as session:
            row = _LeaseRow(session, self.database)
            self.term = row.acquire(self.owner, now, now + TTL, abandoned=self._abandoned_expiry(now))
            expiry = row.expires_at() if self.term is None else None
        self.renewed_at = now if self.term is not None else None
        if expiry is None:
            self.rival_expiry = None
        elif self.rival_expiry is None or self.rival_expiry[0] != expiry or now < self.rival_expiry[1]:
            self.rival_expiry = expiry, now
        return self.is_leader

    def _abandoned_expiry(self, now: datetime) -> datetime | None:
        """Return the expiry of a lease not renewed for a full TTL by our clock; the owner's clock may be ahead."""
        rival = self.rival_expiry
        return rival[0] if rival is not None and now - rival[1] >= TTL else None

    def renew(self, now: datetime) -> None:
        """Extend the lease if this term still holds; after a change of leader, only `acquire` takes it again."""
        with self.database.write() as session:
            row = _LeaseRow(session, self.database)
            if self.term is not None and row.holds(self.owner, self.term):
                row.acquire(self.owner, now, now + TTL)

    @contextmanager
    def write(self, *, is_change: bool = True) -> Iterator[Session]:
        """Open a transaction that fails if another service has become the leader.

        Args:
            is_change: Whether the transaction raises `writes`; False for routine writes that change no job.

        Raises:
            LeaseLostError: another service is the leader; nothing was written.
            UnavailableError: as `Database.write`.
        """
        with self.database.write() as session:
            if self.term is None or not _LeaseRow(session, self.database).holds(self.owner, self.term):
                self.renewed_at = None
                raise LeaseLostError("another service is the leader")
            self.writes += is_change
            yield session

    def release(self, now: datetime) -> None:
        """Expire the lease, so that another service can take over at once."""
        self.renewed_at = None
        with self.database.write() as session:
            _LeaseRow(session, self.database).expire(self.owner, now)


def current_leader(database: Database, now: datetime) -> datetime | None:
    """Return when the lease of the present leader ends; None without a leader."""
    with database.read() as session:
        expiry = _LeaseRow(session, database).expires_at()
    return expiry if expiry is not None and expiry > now else None


def lease_owner(state: Path) -> str:
    """Return the owner name of the service that uses a state folder.

    A lock on the folder lets only one process use the name, so that a service that was killed and restarted takes its
    own lease again at once.
    """
    return hashlib.sha256(f"{socket.gethostname()}:{state}".encode()).hexdigest()[:32]


class _LeaseRow:
    """The SQL of the lease's row, within a session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def acquire(
        self, owner: str, now: datetime, expires_at: datetime, *, abandoned: datetime | None = None
    ) -> int | None:
        """Renew this owner's lease or take a free lease; return the term, or None if another owner holds the lease.

        Args:
            abandoned: A lease with exactly this expiry counts as free.
        """
        values = {"name": _NAME, "owner": owner, "term": 1, "expires_at": expires_at}
        ours = sa.update(Lease).where(Lease.name == _NAME, Lease.owner == owner).values(expires_at=expires_at)
        free = sa.or_(Lease.expires_at <= now, Lease.expires_at == abandoned)
        expired = sa.update(Lease).where(Lease.name == _NAME, free)
        takeover = expired.values(owner=owner, term=Lease.term + 1, expires_at=expires_at)
        if not (self._update(ours) or self._update(takeover)):
            # On the first start there is no row; the process that inserts it then renews it.
            self._session.execute(self._database.insert(Lease).values(values).on_conflict_do_nothing())
            if not self._update(ours):
                return None
        return self._session.scalar(sa.select(Lease.term).where(Lease.name == _NAME))

    def expires_at(self) -> datetime | None:
        return self._session.scalar(sa.select(Lease.expires_at).where(Lease.name == _NAME))

    def holds(self, owner: str, term: int) -> bool:
        """Return whether the lease still has this owner and term; a lock keeps it so until the transaction ends."""
        return self._session.scalar(_HELD_TERM, {"owner": owner, "term": term}) is not None

    def expire(self, owner: str, now: datetime) -> None:
        self._update(sa.update(Lease).where(Lease.name == _NAME, Lease.owner == owner).values(expires_at=now))

    def _update(self, statement: Any) -> bool:
        result = self._session.execute(statement.execution_options(synchronize_session=False))
        return cast(sa.CursorResult[Any], result).rowcount == 1
