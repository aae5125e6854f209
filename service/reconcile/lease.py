"""Who reconciles: one holder at a time, by a row that expires."""

import hashlib
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from service.db.engine import Database
from service.reconcile.repository import LeaseRepository

TTL = timedelta(seconds=15)


@dataclass
class LeaderLease:
    """A claim on leadership, renewed at every tick."""

    database: Database
    owner: str

    def hold(self, now: datetime) -> bool:
        """Take or renew the lease; False while another holds it."""
        with self.database.write() as session:
            return LeaseRepository(session, self.database).take("reconciler", self.owner, now, now + TTL)

    def release(self, now: datetime) -> None:
        """Let the next one start at once."""
        with self.database.write() as session:
            LeaseRepository(session, self.database).expire("reconciler", self.owner, now)


def owner_of(state: Path) -> str:
    """The name under which the service of a state folder holds the lease.

    A lock on the folder lets one process at a time have that name, so that a service that was killed takes up its own
    lease again at once.
    """
    return hashlib.sha256(f"{socket.gethostname()}:{state}".encode()).hexdigest()[:32]
