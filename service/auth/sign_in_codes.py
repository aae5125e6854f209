"""Codes that work once, in both directions between browsers and programs.

A program that has a token makes a code that signs a browser in: `trainyard open`. A browser that has just signed in
elsewhere shows a code that gives a program a token: `trainyard login --browser`.
"""

import secrets
from datetime import datetime, timedelta

from service.audit.log import CURRENT_REQUEST
from service.auth.principals import Principal, is_valid, principal_for_token
from service.auth.repository import SignInCodeRepository
from service.auth.sessions import start_session
from service.auth.tokens import hash_token, new_user_token
from service.core.errors import AuthenticationError, NotFoundError
from service.db.engine import Database
from service.db.models import SignInCode, Token

CODE_SECONDS = 60
"""Lifetime of a code; a browser uses it at once."""
PROGRAM_CODE_SECONDS = 300
"""Lifetime of a code that a person copies from a browser to a program."""
MAX_CODES = 10
"""Maximum number of codes of a token that are neither used nor expired. A further code replaces the oldest."""
MAX_LENGTH = 100
_MSG_CODE = "the code is unknown, was used before, or is older than five minutes: get a new one in the browser"


def create_code(database: Database, token_id: str, now: datetime) -> tuple[str, datetime]:
    """Return a code that signs in as the user of this token, and when it expires. Only its hash is stored."""
    code, expires_at = secrets.token_urlsafe(32), now + timedelta(seconds=CODE_SECONDS)
    row = SignInCode(hash=hash_token(code), token_id=token_id, created_at=now, expires_at=expires_at)
    with database.write() as session:
        repository = SignInCodeRepository(session)
        repository.remove_expired(now)
        repository.remove_oldest(token_id, MAX_CODES - 1)
        session.add(row)
    return code, expires_at


def create_program_code(database: Database, token_id: str, now: datetime) -> str:
    """Return a code by which a program gets this token, whose secret nobody has. It signs no browser in."""
    code, expires_at = secrets.token_urlsafe(32), now + timedelta(seconds=PROGRAM_CODE_SECONDS)
    row = SignInCode(hash=hash_token(code), token_id=token_id, created_at=now, expires_at=expires_at, for_program=True)
    with database.write() as session:
        session.add(row)
    return code


def exchange_program_code(database: Database, code: str, now: datetime) -> tuple[Token, str]:
    """Use up a code of a program; return the token with its new secret.

    Raises:
        NotFoundError: the code is unknown, used or expired, or its token is revoked or expired.
    """
    hash_ = hash_token(code)
    with database.write() as session:
        repository = SignInCodeRepository(session)
        token = repository.token(hash_, now, for_program=True)
        if token is None or not repository.use(hash_, now, for_program=True) or not is_valid(token, now):
            raise NotFoundError(_MSG_CODE, code="sign_in_code_not_found", param="code")
        text = new_user_token(token.id)
        token.hash = hash_token(text)
        _set_audit_caller(token)
    return token, text


def _set_audit_caller(token: Token) -> None:
    """Have the audit entry name the user of a token."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.actor, context.token_id, context.role, context.target = token.name, token.id, token.role, token.id


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
