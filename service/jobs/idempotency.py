"""All SQL about idempotency keys: a repeated request with the same key gets the stored response."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import IdempotencyKey


class IdempotencyRepository:
    """Idempotency keys within a session."""

    def __init__(self, session: Session, now: datetime):
        self._session = session
        self._now = now

    def claim(self, database: Database, principal: str, key: str, digest: str) -> IdempotencyKey | None:
        """Claim a key: None if it was free, else the entry of the request that claimed it first.

        A concurrent request with the same key waits here until that request's transaction ends.
        """
        row = {"principal": principal, "key": key, "digest": digest, "response": {}, "created_at": self._now}
        claim = database.insert(IdempotencyKey).values(row).on_conflict_do_nothing().returning(IdempotencyKey.key)
        if self._session.execute(claim).first() is not None:
            return None
        return self._session.get_one(IdempotencyKey, (principal, key))

    def has_response(self, principal: str, key: str) -> bool:
        """Whether a request with this key has a stored response."""
        return self._session.get(IdempotencyKey, (principal, key)) is not None

    def store_response(self, principal: str, key: str, response: dict[str, Any]) -> None:
        """Store the response of the request that claimed the key."""
        self._session.get_one(IdempotencyKey, (principal, key)).response = response
