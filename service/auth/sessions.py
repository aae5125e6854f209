"""Browser sessions: a signed-in browser holds a session secret in a cookie, never the API token."""

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal

from service.auth.principals import Principal, authenticate, principal_for_token
from service.auth.repository import SessionRepository
from service.auth.tokens import hash_token
from service.core.errors import AuthenticationError, PermissionDeniedError
from service.db.engine import Database
from service.db.models import WebSession

CSRF_HEADER = "X-CSRF-Token"
MAX_COOKIE_BYTES = 4096
"""Maximum size of a `Cookie` header; other services on the same host name may set cookies too."""
_MAX_SECRET_LENGTH = 200
MAX_SESSIONS = 50
"""Maximum number of sessions of a token. A further sign-in ends the oldest session."""


@dataclass(frozen=True)
class Cookie:
    """The cookie that holds the session secret, or another secret of a browser."""

    secure: bool
    """Whether users reach the service by https."""
    path: str = "/"
    """The path below which users reach the service. Services on the same host, each below its own path, share no
    session."""
    suffix: str = ""
    """The end of the name of another cookie."""
    same_site: Literal["Strict", "Lax"] = "Strict"
    """`Lax`: browsers send it also with a link or a redirect of another site."""

    @property
    def name(self) -> str:
        """The cookie's name. Browsers accept `__Host-` only on a secure cookie of the whole host, which sibling domains
        cannot set, and `__Secure-` on any secure cookie."""
        prefix = "__Host-" if self.path == "/" else "__Secure-"
        return f"{prefix if self.secure else ''}trainyard{self.suffix}"

    def read(self, header: str | None) -> str | None:
        """Return the secret in a `Cookie` header; None if it has none that is well-formed.

        `http.cookies` is not used: its time is quadratic before Python 3.11.10 and 3.12.6 (CVE-2024-7592).
        """
        if not header or len(header) > MAX_COOKIE_BYTES:
            return None
        for pair in header.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.name:
                return value if 0 < len(value) <= _MAX_SECRET_LENGTH else None
        return None

    def header(self, secret: str, seconds: int) -> str:
        """Return the value of a `Set-Cookie` header; with `seconds=0` the browser deletes the cookie."""
        secure = "; Secure" if self.secure else ""
        attributes = f"Path={self.path}; Max-Age={seconds}; HttpOnly; SameSite={self.same_site}{secure}"
        return f"{self.name}={secret}; {attributes}"


def sign_in(database: Database, token: str, lifetime: timedelta, now: datetime) -> tuple[Principal, str]:
    """Create a session; return the token's principal and the secret of the session.

    Raises:
        AuthenticationError: the token is invalid, belongs to a worker, or is a project token.
    """
    principal = authenticate(database, f"Bearer {token}", now)
    if principal.kind != "user" or principal.project is not None:
        raise AuthenticationError
    return principal, start_session(database, principal, lifetime, now)


def start_session(database: Database, principal: Principal, lifetime: timedelta, now: datetime) -> str:
    """Create a session of a user; return its secret."""
    secret = secrets.token_urlsafe(32)
    row = WebSession(hash=hash_token(secret), token_id=principal.id, created_at=now, expires_at=now + lifetime)
    with database.write() as session:
        repository = SessionRepository(session)
        repository.remove_expired(now)
        repository.remove_oldest(principal.id, MAX_SESSIONS - 1)
        session.add(row)
    return secret


def authenticate_session(database: Database, secret: str, now: datetime) -> Principal:
    """Return the principal of a session.

    Raises:
        AuthenticationError: the session does not exist or has expired, or its token is revoked or expired.
    """
    with database.read() as session:
        row = SessionRepository(session).get_with_token(hash_token(secret))
    if row is None or now >= row[0].expires_at:
        raise AuthenticationError
    return principal_for_token(database, row[1], now)


def sign_out(database: Database, secret: str) -> None:
    """End the session of this secret."""
    with database.write() as session:
        SessionRepository(session).remove(hash_token(secret))


def csrf_of(secret: str) -> str:
    """Return the CSRF token of a session, derived from its secret so that it need not be stored."""
    return sha256(f"csrf:{secret}".encode()).hexdigest()


def require_csrf(secret: str, sent: str | None) -> None:
    """Check the CSRF token of a request.

    Raises:
        PermissionDeniedError: the request does not come from a page of this session.
    """
    if not hmac.compare_digest(csrf_of(secret).encode(), (sent or "").encode()):
        raise PermissionDeniedError(
            f"a change that is authenticated by a cookie needs the page's CSRF token in the header {CSRF_HEADER}",
            code="csrf_token",
        )
