"""Codes that sign a browser in once, made by a program that has a token: `trainyard open`."""

import secrets
from datetime import datetime, timedelta

from service.auth.principals import Principal, principal_for_token
from service.auth.repository import SignInCodeRepository
from service.auth.sessions import start_session
from service.auth.tokens import hash_token
from service.core.errors import AuthenticationError
from service.db.engine import Database
from service.db.models import SignInCode

CODE_SECONDS = 60
"""Lifetime of a code; a browser uses it at once."""
MAX_CODES = 10
"""Maximum number of codes of a token that are neither used nor expired. A further code replaces the oldest."""
MAX_LENGTH = 100


def create_code(database: Database, token_id: str, now: datetime) -> tuple[str, datetime]:
    """Return a code that signs in as the user of this token, and when it expires. Only its hash is stored."""
    code, expires_at = secrets.token_urlsafe(32), now + timedelta(seconds=CODE_SECONDS)
    row = SignInCode(hash=hash_token(code), token_id=token_id, created_at=now, expires_at=expires_at)
    with database.write() as session:
        repository = SignInCodeRepository(session)
        repository.remove_expired(now)
        repository.remove_oldest(token_id, MAX_CODES - 1)
        repository.add(row)
    return code, expires_at


def principal_of_code(database: Database, code: str, now: datetime) -> Principal:
    """Return whom a code would sign in; it stays valid.

    Raises:
        AuthenticationError: the code is unknown, used or expired, or its token is revoked or expired.
    """
    with database.read() as session:
        token = SignInCodeRepository(session).token(_hash(code), now)
    if token is None:
        raise AuthenticationError
    return principal_for_token(database, token, now)


def sign_in_with_code(database: Database, code: str, lifetime: timedelta, now: datetime) -> tuple[Principal, str]:
    """Use up a code; return the principal of its token and the secret of a new session.

    Raises:
        AuthenticationError: as in `principal_of_code`, also if another request has just used it.
    """
    principal = principal_of_code(database, code, now)
    with database.write() as session:
        if not SignInCodeRepository(session).use(_hash(code), now):
            raise AuthenticationError
    return principal, start_session(database, principal, lifetime, now)


def _hash(code: str) -> str:
    if not 0 < len(code) <= MAX_LENGTH:
        raise AuthenticationError
    return hash_token(code)
