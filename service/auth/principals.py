"""Who holds this token, and the admin token of the first start."""

import os
import re
import stat
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import structlog

from service.auth.repository import TokenRepository
from service.auth.tokens import NO_HASH, Role, bearer, constant_time_equal, hash_token, new_user_token, parse_token
from service.core.errors import AuthenticationError, ServiceError, UnavailableError
from service.core.private_files import read_secret
from service.db.engine import Database
from service.db.models import Token
from trainyard.contract.layout import write_atomic

WORKER_GRACE = timedelta(hours=24)
"""How long after its attempt's end a worker may still deliver what it had spooled."""

log = structlog.get_logger("service")

ADMIN = "admin"
_MADE_BY_HAND = re.compile(r"ty_[0-9a-f]{12}_[A-Za-z0-9_-]{32,150}")
_USE_APART = timedelta(seconds=60)
"""Between two notes of a token's use: reading must not become writing."""


@dataclass(frozen=True)
class Principal:
    """Who is asking."""

    kind: Literal["user", "worker"]
    id: str
    """A worker's attempt, or a person's token."""
    name: str
    role: Role | None = None
    may_run_code: bool = False
    """Granted to the token itself, whatever its role."""


def authenticate(database: Database, authorization: str | None, now: datetime) -> Principal:
    """The holder of a bearer token.

    Raises:
        AuthenticationError: whatever is wrong with it; a stranger learns no more than that.
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
        # Compared even where there is none: how long a refusal takes tells nobody which ids there are.
        same = constant_time_equal(row.hash if row is not None else NO_HASH, token.hash)
        if row is None or not same:
            raise AuthenticationError
    return principal_for_token(database, row, now)


def principal_for_token(database: Database, row: Token, now: datetime) -> Principal:
    """Whoever a token belongs to, if it is good still; its use is noted.

    Raises:
        AuthenticationError: it is revoked, or has expired.
    """
    if row.revoked_at is not None or (row.expires_at is not None and now >= row.expires_at):
        raise AuthenticationError
    if row.last_used_at is None or now - row.last_used_at >= _USE_APART:
        _note_use(database, row.id, now)
    role: Role = row.role  # type: ignore[assignment]
    return Principal(kind="user", id=row.id, name=row.name, role=role, may_run_code=row.may_run_code)


def is_token_valid(database: Database, token_id: str, now: datetime) -> bool:
    """Whether a person's token that was good is so now; where it cannot be looked up, nothing is held against it."""
    try:
        with database.read() as session:
            row = TokenRepository(session).get(token_id)
    except UnavailableError:
        return True
    return row is not None and row.revoked_at is None and (row.expires_at is None or now < row.expires_at)


def _note_use(database: Database, token_id: str, now: datetime) -> None:
    try:
        with database.write() as session:
            TokenRepository(session).used(token_id, now, _USE_APART)
    except UnavailableError:
        # Who only reads is not refused because nothing can be written just now.
        return


def ensure_admin_token(database: Database, path: Path, now: datetime) -> None:
    """Make an admin token if the file is missing or belongs to another database. Those of other services stay good.

    Raises:
        ServiceError: the file can be read by others.
    """
    if path.exists():
        if stat.S_IMODE(path.stat().st_mode) & 0o077 or path.stat().st_uid != os.getuid():
            raise ServiceError(f"{path} must belong to you and be readable by you alone: chmod 600 {path}")
        try:
            authenticate(database, f"Bearer {path.read_text().strip()}", now)
            return
        except AuthenticationError:
            pass
    text = new_user_token()
    parsed = parse_token(text)
    assert parsed is not None
    with database.write() as session:
        repository = TokenRepository(session)
        others = repository.live_administrators(now)
        repository.add(Token(id=parsed.id, hash=hash_token(text), name=ADMIN, role="admin", created_at=now))
    write_atomic(path, text + "\n", mode=0o600)
    if others:
        log.warning("made one more administrator's token; revoke those that are lost: trainyard tokens", others=others)


def register_admin_token(database: Database, path: Path, now: datetime) -> None:
    """Let in the holder of the token that an operator has put into a file, which every replica reads.

    Raises:
        ServiceError: it is no such token, others can read it, or it was revoked.
    """
    text = read_secret(path)
    parsed = parse_token(text)
    if parsed is None or not _MADE_BY_HAND.fullmatch(text):
        raise ServiceError(f"{path} must hold ty_<12 hexadecimal digits>_<32 random letters and digits, or more>")
    with database.write() as session:
        TokenRepository(session).add_new(
            database, id=parsed.id, hash=parsed.hash, name=ADMIN, role="admin", created_at=now, may_run_code=False
        )
    try:
        authenticate(database, f"Bearer {text}", now)
    except AuthenticationError:
        raise ServiceError(
            f"the token in {path} was revoked, or its digits are another's: put a new one there"
        ) from None
