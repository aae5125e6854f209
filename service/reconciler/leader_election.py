"""Who reconciles: one holder at a time, by a row that expires, and whose term fences what a former holder writes."""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy.orm import Session

from service.db.engine import Database
from service.reconciler.repository import LeaseRepository

TTL = timedelta(seconds=15)
_FRESH = timedelta(seconds=1)
_NAME = "reconciler"


class LeaseLostError(Exception):
    """Another has taken over; what was to be written was decided on what is no longer so."""


@dataclass
class LeaderLease:
    """A claim on leadership, renewed at every tick and between."""

    database: Database
    owner: str
    term: int | None = None
    """Of the last claim that was granted."""
    renewed_at: datetime | None = None
    others: tuple[datetime, datetime] | None = None
    """While another holds it: until when by its own clock, and since when we have seen that word, by ours."""
    writes: int = 0
    """Fenced transactions so far: a tick without one has changed nothing."""

    def hold(self, now: datetime) -> bool:
        """Take or renew the lease; False while another holds it.

        One that was renewed a moment ago is not renewed again: each write looks at it anyway.
        """
        if self.renewed_at is not None and timedelta(0) <= now - self.renewed_at < _FRESH:
            return True
        with self.database.write() as session:
            leases = LeaseRepository(session, self.database)
            self.term = leases.take(_NAME, self.owner, now, now + TTL, abandoned=self._abandoned(now))
            until = leases.expires_at(_NAME) if self.term is None else None
        self.renewed_at = now if self.term is not None else None
        if until is None:
            self.others = None
        elif self.others is None or self.others[0] != until or now < self.others[1]:
            self.others = until, now
        return self.term is not None

    def _abandoned(self, now: datetime) -> datetime | None:
        """The word of a holder that has not renewed it for as long as it lasts: its clock may be ahead of ours."""
        return self.others[0] if self.others is not None and now - self.others[1] >= TTL else None

    def renew(self, now: datetime) -> None:
        """Hold it longer, where it still is ours: one that was another's meanwhile begins anew, with a tick."""
        with self.database.write() as session:
            leases = LeaseRepository(session, self.database)
            if self.term is not None and leases.holds(_NAME, self.owner, self.term):
                leases.take(_NAME, self.owner, now, now + TTL)

    @contextmanager
    def write(self, *, counts: bool = True) -> Iterator[Session]:
        """A transaction that another holder's beginning makes impossible.

        Args:
            counts: among `writes`; what is written every minute anyway is no change.

        Raises:
            LeaseLostError: the lease is another's; nothing was written.
            UnavailableError: as `Database.write`.
        """
        with self.database.write() as session:
            if self.term is None or not LeaseRepository(session, self.database).holds(_NAME, self.owner, self.term):
                self.renewed_at = None
                raise LeaseLostError("another service reconciles now")
            self.writes += counts
            yield session

    def release(self, now: datetime) -> None:
        """Let the next one start at once."""
        self.renewed_at = None
        with self.database.write() as session:
            LeaseRepository(session, self.database).expire(_NAME, self.owner, now)


def owner_of(state: Path) -> str:
    """The name under which the service of a state folder holds the lease.

    A lock on the folder lets one process at a time have that name, so that a service that was killed takes up its own
    lease again at once.
    """
    return hashlib.sha256(f"{socket.gethostname()}:{state}".encode()).hexdigest()[:32]
