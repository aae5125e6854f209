"""Listeners of changes: plugins that write rows in the transaction of a change, which its feature need not know."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy.orm import Session

from service.db.models import Event, Job

INFO = "listeners"
"""The entry of `Session.info` that has the listeners of the session's database."""


class ChangeListener(Protocol):
    """Is called within the transaction of a change, so that its rows are committed with the change or not at all."""

    def status_changed(self, session: Session, jobs: Sequence[Job], now: datetime) -> None:
        """Receive jobs that are new or have a new status."""

    def alert_raised(self, session: Session, job: Job, event: Event, now: datetime) -> None:
        """Receive an alert of a job's program."""

    def node_excluded(self, session: Session, node: dict[str, Any], now: datetime) -> None:
        """Receive a node that all jobs avoid from now on."""


def listeners_of(session: Session) -> Sequence[ChangeListener]:
    """Return the listeners of a transaction."""
    listeners: Sequence[ChangeListener] = session.info.get(INFO, ())
    return listeners
