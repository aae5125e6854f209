"""All SQL about secrets."""

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.models import Secret


class SecretRepository:
    """The secrets of a user within a session."""

    def __init__(self, session: Session, owner: str):
        self._session = session
        self._owner = owner

    def list_all(self) -> Sequence[Secret]:
        """Return all secrets by name."""
        return self._session.scalars(sa.select(Secret).where(Secret.owner == self._owner).order_by(Secret.name)).all()

    def select(self, names: Collection[str]) -> Sequence[Secret]:
        """Return the secrets with these names that exist."""
        return self._session.scalars(sa.select(Secret).where(Secret.owner == self._owner, Secret.name.in_(names))).all()

    def store(self, name: str, encrypted: str, now: datetime) -> Secret:
        """Create or replace a secret."""
        row = self._session.get(Secret, (self._owner, name))
        if row is None:
            row = Secret(owner=self._owner, name=name, created_at=now)
            self._session.add(row)
        row.encrypted, row.updated_at = encrypted, now
        return row


def any_stored(session: Session) -> bool:
    """Return whether any user has a secret."""
    return session.execute(sa.select(sa.exists(sa.select(Secret.name)))).scalar_one()


OLDEST = sa.select(Secret.owner, Secret.name, Secret.encrypted).order_by(Secret.updated_at).limit(1)
"""The secret that was stored first: after a change of the key it is the first that cannot be read."""
