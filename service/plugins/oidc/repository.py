"""SQL of the sign-in by a provider."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from service.db.engine import Database
from service.db.models import OidcRequest, OidcToken, OidcUser, Token, UnixUser
from service.db.repository import Repository


class OidcRepository(Repository):
    """Users, started sign-ins and tokens within a session."""

    def count_requests(self) -> int:
        return self._session.scalar(sa.select(sa.func.count()).select_from(OidcRequest)) or 0

    def take_request(self, hash_: str, browser: str, now: datetime) -> OidcRequest | None:
        """Remove the sign-in that this browser started and return it; None if it has none, or another process took
        it."""
        query = sa.select(OidcRequest).where(
            OidcRequest.hash == hash_, OidcRequest.browser == browser, OidcRequest.expires_at > now
        )
        row = self._session.scalar(query)
        if row is None:
            return None
        self._session.expunge(row)
        delete = sa.delete(OidcRequest).where(OidcRequest.hash == hash_).returning(OidcRequest.hash)
        return row if self._session.scalar(delete) is not None else None

    def remove_expired_requests(self, now: datetime) -> None:
        self._session.execute(sa.delete(OidcRequest).where(OidcRequest.expires_at <= now))

    def user(self, issuer: str, subject: str) -> OidcUser | None:
        return self._session.get(OidcUser, (issuer, subject))

    def user_of_name(self, name: str) -> OidcUser | None:
        return self._session.scalar(sa.select(OidcUser).where(OidcUser.name_key == name.lower()))

    def page(self, *, after: str | None, limit: int) -> tuple[list[OidcUser], bool]:
        """Return users by name, and whether more follow."""
        query = sa.select(OidcUser).order_by(OidcUser.name_key).limit(limit + 1)
        if after is not None:
            query = query.where(OidcUser.name_key > after.lower())
        rows = list(self._session.scalars(query))
        return rows[:limit], len(rows) > limit

    def add_user(self, database: Database, issuer: str, subject: str, name: str, now: datetime) -> bool:
        """Add a user; False if the subject or the name exists, also if another process has just added it."""
        row = {"issuer": issuer, "subject": subject, "name": name, "name_key": name.lower(), "created_at": now}
        insert = database.insert(OidcUser).values(row).on_conflict_do_nothing().returning(OidcUser.name)
        return self._session.scalar(insert) is not None

    def remove_user(self, user: OidcUser) -> None:
        self._session.delete(user)
        self._session.flush()

    def unix_name_in_any_case(self, name: str) -> str | None:
        """Return the name of a user with a Unix account that equals this name, or differs from it only by case."""
        query = sa.select(UnixUser.name).where(sa.func.lower(UnixUser.name) == name.lower())
        return self._session.scalar(query.limit(1))

    def token(self, token_id: str) -> OidcToken | None:
        return self._session.get(OidcToken, token_id)

    def revoke_tokens(self, issuer: str, subject: str, now: datetime, *, role: str = "", limit: int = 0) -> None:
        """Revoke the tokens of a subject's sign-ins that have another role, and all others but the newest."""
        query = (
            sa.select(Token)
            .join(OidcToken, OidcToken.token_id == Token.id)
            .where(OidcToken.issuer == issuer, OidcToken.subject == subject, Token.revoked_at.is_(None))
            .where(Token.expires_at > now)
        )
        same_role = 0
        for token in self._session.scalars(query.order_by(Token.created_at.desc(), Token.id)):
            same_role += token.role == role
            if token.role != role or same_role > limit:
                token.revoked_at = now

    def expired_tokens(self, now: datetime, limit: int) -> Sequence[str]:
        return list(
            self._session.scalars(sa.select(OidcToken.token_id).where(OidcToken.expires_at <= now).limit(limit))
        )

    def remove_tokens(self, ids: Sequence[str]) -> None:
        """Forget that tokens came from sign-ins; the tokens stay."""
        self._session.execute(sa.delete(OidcToken).where(OidcToken.token_id.in_(ids)))
