"""Authentication by token, and the administrator's token of the first start."""

import os
import re
import stat
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import structlog

from service.auth.repository import TokenRepository
from service.auth.tokens import NO_HASH, Role, bearer, constant_time_equal, new_token, parse_token
from service.core.errors import AuthenticationError, ServiceError, UnavailableError
from service.core.private_files import read_secret
from service.db.engine import Database
from service.db.models import Token
from service.db.visibility import Reader
from trainyard.contract.layout import write_atomic

WORKER_GRACE = timedelta(hours=24)
"""How long after the end of its attempt a worker may still deliver its spooled reports."""

log = structlog.get_logger("service")

ADMIN = "admin"
_OPERATOR_TOKEN = re.compile(r"ty_[0-9a-f]{12}_[A-Za-z0-9_-]{32,150}")
_LAST_USED_INTERVAL = timedelta(seconds=60)
"""Minimum time between two updates of `last_used_at`, so that reads do not all become writes."""


@dataclass(frozen=True)
class Principal:
    """The authenticated caller."""

    kind: Literal["user", "worker"]
    id: str
    """Id of a worker's attempt or of a user's token."""
    name: str
    role: Role | None = None
    may_run_code: bool = False
    """Granted to the token itself, independent of its role."""
    project: str | None = None
    """The created project for which alone the token is valid; None: for everything."""

    @property
    def owner_filter(self) -> str | None:
        """The owner whose private resources the user sees; None: everyone's, as an administrator."""
        return None if self.role == "admin" else self.name

    def reader(self, *, own_only: bool) -> Reader | None:
        """Return the view to which the user's requests are restricted; None: everything, as an administrator.

        Args:
            own_only: Whether jobs run as their owners.
        """
        if self.role == "admin" and self.project is None:
            return None
        return Reader(self.name, own_only=own_only and self.role != "admin", project=self.project)


def authenticate(database: Database, authorization: str | None, now: datetime) -> Principal:
    """Return the principal of a bearer token.

    Raises:
        AuthenticationError: the token is missing, unknown, expired or revoked.
    """
    token = parse_token(bearer(authorization or "") or "")
    if token is None:
        raise AuthenticationError
    with database.read() as session:
        repository = TokenRepository(session)
        if token.kind == "worker":
            attempt = repository.attempt(token.id)
            same = constant_time_equal((attempt.token_hash if attempt is not None else None) or NO_HASH, token.hash)
            if attempt is None or not same:
                raise AuthenticationError
            if attempt.ended_at is not None and now > attempt.ended_at + WORKER_GRACE:
                raise AuthenticationError
            return Principal(kind="worker", id=attempt.id, name=f"worker of {attempt.tag}")
        row = repository.get(token.id)
        # Compare even if the id is unknown, so that the response time does not reveal which ids exist.
        same = constant_time_equal(row.hash if row is not None else NO_HASH, token.hash)
        if row is None or not same:
            raise AuthenticationError
    return principal_for_token(database, row, now)


def principal_for_token(database: Database, row: Token, now: datetime) -> Principal:
    """Return the principal of a user's token and update its time of last use.

    Raises:
        AuthenticationError: the token is revoked or expired.
    """
    if not is_valid(row, now):
        raise AuthenticationError
    if row.last_used_at is None or now - row.last_used_at >= _LAST_USED_INTERVAL:
        _update_last_used(database, row.id, now)
    role: Role = row.role  # type: ignore[assignment]
    return Principal(
        kind="user", id=row.id, name=row.name, role=role, may_run_code=row.may_run_code, project=row.project
    )


def is_valid(token: Token, now: datetime) -> bool:
    """Return whether a user's token is neither revoked nor expired."""
    return token.revoked_at is None and (token.expires_at is None or now < token.expires_at)


def is_token_valid(database: Database, token_id: str, now: datetime) -> bool:
    """Return whether a user's token is still valid; true while the database is unavailable."""
    try:
        with database.read() as session:
            row = TokenRepository(session).get(token_id)
    except UnavailableError:
        return True
    return row is not None and is_valid(row, now)


def _update_last_used(database: Database, token_id: str, now: datetime) -> None:
    try:
        with database.write() as session:
            TokenRepository(session).set_last_used(token_id, now, _LAST_USED_INTERVAL)
    except UnavailableError:
        # A read must not fail because the database cannot be written now.
        return


def ensure_admin_token(database: Database, path: Path, now: datetime) -> None:
    """Create an admin token if the file is missing or belongs to another database; existing tokens stay valid.

    Raises:
        ServiceError: the file is readable by other accounts.
    """
    if path.exists():
        if stat.S_IMODE(path.stat().st_mode) & 0o077 or path.stat().st_uid != os.getuid():
            raise ServiceError(f"{path} must belong to you and be readable by you alone: chmod 600 {path}")
        try:
            authenticate(database, f"Bearer {path.read_text().strip()}", now)
            return
        except AuthenticationError:
            pass
    token, text = new_token(name=ADMIN, role="admin", now=now)
    with database.write() as session:
        others = TokenRepository(session).count_valid_admins(now)
        session.add(token)
    write_atomic(path, text + "\n", mode=0o600)
    if others:
        log.warning("created another administrator's token; revoke lost ones with: trainyard tokens", others=others)


def register_admin_token(database: Database, path: Path, now: datetime) -> None:
    """Register the token that an operator has put into a file, which every replica reads.

    Raises:
        ServiceError: the token is malformed, readable by other accounts, or revoked.
    """
    text = read_secret(path)
    parsed = parse_token(text)
    if parsed is None or not _OPERATOR_TOKEN.fullmatch(text):
        raise ServiceError(f"{path} must hold ty_<12 hexadecimal digits>_<32 random letters and digits, or more>")
    with database.write() as session:
        TokenRepository(session).add_new(
            database, id=parsed.id, hash=parsed.hash, name=ADMIN, role="admin", created_at=now, may_run_code=False
        )
    try:
        authenticate(database, f"Bearer {text}", now)
    except AuthenticationError:
        raise ServiceError(
            f"the token in {path} was revoked, or another token has its id: write a new one to the file"
        ) from None
