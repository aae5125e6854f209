"""All SQL about API tokens."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.models import Attempt, Token


class TokenRepository:
    """Tokens within one session."""

    def __init__(self, session: Session):
        self._session = session

    def get(self, token_id: str) -> Token | None:
        return self._session.get(Token, token_id)

    def add(self, token: Token) -> None:
        self._session.add(token)

    def attempt(self, attempt_id: str) -> Attempt | None:
        """The attempt whose worker's token is asked about."""
        return self._session.get(Attempt, attempt_id)

    def revoke_named(self, name: str, now: object) -> None:
        """Revoke every live token of that name."""
        live = sa.update(Token).where(Token.name == name, Token.revoked_at.is_(None))
        self._session.execute(live.values(revoked_at=now))
