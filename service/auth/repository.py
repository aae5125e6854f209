"""SQL of API tokens, browser sessions, and codes and nonces of sign-ins."""

from datetime import datetime, timedelta

import sqlalchemy as sa

from service.core.errors import NotFoundError
from service.db.engine import Database
from service.db.models import Attempt, OidcUser, SignInCode, SignInNonce, Token, UnixUser, WebSession
from service.db.repository import Repository, require_row


class TokenRepository(Repository):
    """Tokens within a session."""

    def get(self, token_id: str) -> Token | None:
        return self._session.get(Token, token_id)

    def require(self, token_id: str) -> Token:
        """Return the token with this id. Raises NotFoundError: there is none."""
        return require_row(self.get(token_id), "token", token_id)

    def lock_name(self, database: Database, name: str) -> None:
        """Wait for other transactions that give this name to a user, in any case of its letters.

        Sign-ins of several kinds look for each other's rows, which Postgres shows only after their commit. SQLite has
        one writer at a time.
        """
        if database.dialect == "postgresql":
            key = sa.func.hashtext(f"user name {name.lower()}")
            self._session.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))

    def name_with_other_case(self, name: str) -> str | None:
        """Return the name of a token that differs from this name only by case."""
        query = sa.select(Token.name).where(sa.func.lower(Token.name) == name.lower(), Token.name != name)
        return self._session.scalar(query.limit(1))

    def name_in_any_case(self, name: str) -> str | None:
        """Return the name of a token that equals this name, or differs from it only by case."""
        return self._session.scalar(sa.select(Token.name).where(sa.func.lower(Token.name) == name.lower()).limit(1))

    def name_at_provider(self, name: str) -> str | None:
        """Return the name of a user of an OpenID provider that equals this name, or differs from it only by case."""
        return self._session.scalar(sa.select(OidcUser.name).where(OidcUser.name_key == name.lower()))

    def revoke_sign_ins(self, name: str, now: datetime, *, role: str, limit: int) -> None:
        """Revoke the user's tokens of sign-ins that have another role, and all others but the newest."""
        unexpired = sa.or_(Token.expires_at.is_(None), Token.expires_at > now)
        valid = (Token.name == name, Token.unix_uid.is_not(None), Token.revoked_at.is_(None), unexpired)
        rows = self._session.scalars(sa.select(Token).where(*valid).order_by(Token.created_at.desc(), Token.id))
        same_role = 0
        for token in rows:
            same_role += token.role == role
            if token.role != role or same_role > limit:
                token.revoked_at = now

    def attempt(self, attempt_id: str) -> Attempt | None:
        """Return the attempt that an attempt token names."""
        return self._session.get(Attempt, attempt_id)

    def page(self, *, after: str | None, limit: int, descending: bool) -> tuple[list[Token], bool]:
        """Return a page by time of creation, and whether more tokens follow.

        Raises:
            NotFoundError: there is no token with the id `after`.
        """
        query = sa.select(Token)
        key = sa.tuple_(Token.created_at, Token.id)
        if after is not None:
            last_row = self.get(after)
            if last_row is None:
                raise NotFoundError(f"there is no token {after!r}", code="token_not_found", param="after")
            start = sa.tuple_(sa.literal(last_row.created_at, Token.created_at.type), sa.literal(last_row.id))
            query = query.where(key < start if descending else key > start)
        columns = (Token.created_at, Token.id)
        order = [column.desc() if descending else column.asc() for column in columns]
        rows = list(self._session.scalars(query.order_by(*order).limit(limit + 1)))
        return rows[:limit], len(rows) > limit

    def count_valid_admins(self, now: datetime) -> int:
        """Return the number of admin tokens that are neither revoked nor expired."""
        unexpired = sa.or_(Token.expires_at.is_(None), Token.expires_at > now)
        live = (Token.role == "admin", Token.revoked_at.is_(None), unexpired)
        return self._session.scalar(sa.select(sa.func.count()).select_from(Token).where(*live)) or 0

    def submitter_role(self, name: str, now: datetime) -> str | None:
        """Return the role of the user's newest valid token; None if none may submit jobs."""
        unexpired = sa.or_(Token.expires_at.is_(None), Token.expires_at > now)
        query = sa.select(Token.role).where(
            Token.name == name, Token.role.in_(("admin", "user")), Token.revoked_at.is_(None), unexpired
        )
        return self._session.scalar(query.order_by(Token.created_at.desc()).limit(1))

    def set_last_used(self, token_id: str, now: datetime, interval: timedelta) -> None:
        """Update the token's time of last use, unless that was updated within the interval."""
        stale = sa.or_(Token.last_used_at.is_(None), Token.last_used_at <= now - interval)
        self._session.execute(sa.update(Token).where(Token.id == token_id, stale).values(last_used_at=now))

    def add_new(self, database: Database, **values: object) -> None:
        """Add a token unless its id exists: several processes may add the same token at once."""
        self._session.execute(database.insert(Token).values(values).on_conflict_do_nothing())


class SessionRepository(Repository):
    """Browser sessions within a session of the database."""

    def get_with_token(self, hash_: str) -> tuple[WebSession, Token] | None:
        query = sa.select(WebSession, Token).join(Token, Token.id == WebSession.token_id)
        row = self._session.execute(query.where(WebSession.hash == hash_)).first()
        return (row[0], row[1]) if row is not None else None

    def remove(self, hash_: str) -> None:
        self._session.execute(sa.delete(WebSession).where(WebSession.hash == hash_))

    def remove_oldest(self, token_id: str, limit: int) -> None:
        """Remove all sessions of a token but the newest."""
        newest_first = (WebSession.created_at.desc(), WebSession.hash)
        query = sa.select(WebSession.hash).where(WebSession.token_id == token_id).order_by(*newest_first)
        old = list(self._session.scalars(query.offset(limit)))
        self._session.execute(sa.delete(WebSession).where(WebSession.hash.in_(old)))

    def remove_expired(self, now: datetime) -> None:
        self._session.execute(sa.delete(WebSession).where(WebSession.expires_at <= now))


class SignInCodeRepository(Repository):
    """Codes of sign-ins within a session of the database."""

    def token(self, hash_: str, now: datetime, *, for_program: bool = False) -> Token | None:
        """Return the token of a code that is neither used nor expired."""
        query = sa.select(Token).join(SignInCode, SignInCode.token_id == Token.id)
        return self._session.scalar(query.where(*self._valid(hash_, now, for_program)))

    def use(self, hash_: str, now: datetime, *, for_program: bool = False) -> bool:
        """Remove a code; False if it is gone or expired, also if another process has just removed it."""
        delete = sa.delete(SignInCode).where(*self._valid(hash_, now, for_program))
        return self._session.scalar(delete.returning(SignInCode.hash)) is not None

    def _valid(self, hash_: str, now: datetime, for_program: bool) -> tuple[sa.ColumnElement[bool], ...]:
        return SignInCode.hash == hash_, SignInCode.expires_at > now, SignInCode.for_program == for_program

    def remove_expired(self, now: datetime) -> None:
        self._session.execute(sa.delete(SignInCode).where(SignInCode.expires_at <= now))

    def remove_oldest(self, token_id: str, limit: int) -> None:
        """Remove all codes of a token but the newest."""
        newest_first = (SignInCode.created_at.desc(), SignInCode.hash)
        query = sa.select(SignInCode.hash).where(SignInCode.token_id == token_id).order_by(*newest_first)
        old = list(self._session.scalars(query.offset(limit)))
        self._session.execute(sa.delete(SignInCode).where(SignInCode.hash.in_(old)))


class UnixUserRepository(Repository):
    """Users with Unix accounts, and nonces of sign-ins, within a session."""

    def uid(self, name: str) -> int | None:
        """Return the uid of the account that a user's name belongs to; None if it belongs to no account."""
        return self._session.scalar(sa.select(UnixUser.uid).where(UnixUser.name == name))

    def name(self, uid: int) -> str | None:
        """Return the name of the user to whom an account belongs; None if it belongs to nobody."""
        return self._session.scalar(sa.select(UnixUser.name).where(UnixUser.uid == uid))

    def require(self, name: str) -> UnixUser:
        return self._session.get_one(UnixUser, name)

    def conflicting(self, name: str, uid: int) -> list[UnixUser]:
        """Return the users that have either this name or this uid, but not both."""
        same = sa.and_(UnixUser.name == name, UnixUser.uid == uid)
        either = sa.or_(UnixUser.name == name, UnixUser.uid == uid)
        return list(self._session.scalars(sa.select(UnixUser).where(either, sa.not_(same))))

    def remove(self, user: UnixUser) -> None:
        self._session.delete(user)
        self._session.flush()

    def add_new(self, database: Database, name: str, uid: int, now: datetime) -> bool:
        """Add a user; False if the name or the uid exists, also if another process has just added it."""
        row = {"name": name, "uid": uid, "created_at": now}
        insert = database.insert(UnixUser).values(row).on_conflict_do_nothing().returning(UnixUser.name)
        return self._session.scalar(insert) is not None

    def count_nonces(self) -> int:
        return self._session.scalar(sa.select(sa.func.count()).select_from(SignInNonce)) or 0

    def remove_expired_nonces(self, now: datetime) -> None:
        self._session.execute(sa.delete(SignInNonce).where(SignInNonce.expires_at <= now))

    def _nonce(self, hash_: str, network: str, now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
        return SignInNonce.hash == hash_, SignInNonce.network == network, SignInNonce.expires_at > now

    def has_nonce(self, hash_: str, network: str, now: datetime) -> bool:
        """Return whether this client has a nonce that is neither used nor expired."""
        return self._session.scalar(sa.select(SignInNonce.hash).where(*self._nonce(hash_, network, now))) is not None

    def use_nonce(self, hash_: str, network: str, now: datetime) -> bool:
        """Remove a nonce; False if this client has none, also if another process has just removed it."""
        delete = sa.delete(SignInNonce).where(*self._nonce(hash_, network, now)).returning(SignInNonce.hash)
        return self._session.scalar(delete) is not None
