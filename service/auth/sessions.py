"""Browsers that are signed in with somebody's token. What they hold is a secret of their own, never the token."""

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from service.auth.principals import Principal, authenticate, principal_for_token
from service.auth.repository import SessionRepository
from service.auth.tokens import hash_token
from service.core.errors import AuthenticationError, PermissionDeniedError
from service.db.engine import Database
from service.db.models import WebSession

CSRF_HEADER = "X-CSRF-Token"
_LONGEST = 200


@dataclass(frozen=True)
class Cookie:
    """How the secret travels."""

    secure: bool
    """Whether people come by https."""

    @property
    def name(self) -> str:
        """A browser takes the prefix only with what makes a cookie unreachable from sibling domains."""
        return "__Host-trainyard" if self.secure else "trainyard"

    def read(self, header: str | None) -> str | None:
        """The secret in a request's `Cookie` header."""
        if not header:
            return None
        try:
            found = SimpleCookie(header).get(self.name)
        except CookieError:
            return None
        return found.value if found is not None and 0 < len(found.value) <= _LONGEST else None

    def header(self, secret: str, seconds: int) -> str:
        """A `Set-Cookie`; with no seconds left the browser forgets it."""
        secure = "; Secure" if self.secure else ""
        return f"{self.name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def sign_in(database: Database, token: str, lifetime: timedelta, now: datetime) -> tuple[Principal, str]:
    """Who holds the token, and the secret of a new session of theirs.

    Raises:
        AuthenticationError: it is no person's token, or none that is good.
    """
    principal = authenticate(database, f"Bearer {token}", now)
    if principal.kind != "user":
        raise AuthenticationError
    secret = secrets.token_urlsafe(32)
    row = WebSession(hash=hash_token(secret), token_id=principal.id, created_at=now, expires_at=now + lifetime)
    with database.write() as session:
        repository = SessionRepository(session)
        repository.remove_expired(now)
        repository.add(row)
    return principal, secret


def authenticate_session(database: Database, secret: str, now: datetime) -> Principal:
    """Whose session it is.

    Raises:
        AuthenticationError: there is none, it is over, or its token is.
    """
    with database.read() as session:
        found = SessionRepository(session).with_token(hash_token(secret))
    if found is None or now >= found[0].expires_at:
        raise AuthenticationError
    return principal_for_token(database, found[1], now)


def sign_out(database: Database, secret: str) -> None:
    """From now on the secret opens nothing."""
    with database.write() as session:
        SessionRepository(session).remove(hash_token(secret))


def csrf_of(secret: str) -> str:
    """What a page of ours can send and no other page knows. Made of the secret, so that it need not be kept."""
    return sha256(f"csrf:{secret}".encode()).hexdigest()


def require_csrf(secret: str, sent: str | None) -> None:
    """Raises PermissionDeniedError: the request does not come from a page of this session."""
    if not hmac.compare_digest(csrf_of(secret).encode(), (sent or "").encode()):
        raise PermissionDeniedError(
            f"a change asked for with a cookie needs the header {CSRF_HEADER} that the page was given",
            code="csrf_token",
        )
