"""Tables of API tokens, browser sessions and the audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, false
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Token(Base):
    """An API token. Only its hash is stored."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    hash: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    may_run_code: Mapped[bool] = mapped_column(default=False, server_default=false())
    created_by: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    """Updated at most once a minute."""
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    unix_uid: Mapped[int | None] = mapped_column(BigInteger)
    """The Unix account that signed in by munge; None for other tokens."""
    is_sign_in: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether a sign-in other than by munge made it, so that its user may revoke it."""
    project: Mapped[str | None] = mapped_column(String(120))
    """The created project for which alone it is valid; None: for everything."""


class UnixUser(Base):
    """A user whose name belongs to a Unix account."""

    __tablename__ = "unix_users"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    """Name of the user, which is the name of the account."""
    uid: Mapped[int] = mapped_column(BigInteger, unique=True)
    created_at: Mapped[datetime]


class SignInNonce(Base):
    """A nonce that was sent to a client for a single sign-in."""

    __tablename__ = "sign_in_nonces"
    __table_args__ = (Index(None, "expires_at"),)

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the nonce."""
    network: Mapped[str] = mapped_column(String(64))
    """The client's address, or its /64 network."""
    expires_at: Mapped[datetime]


class SignInCode(Base):
    """A code that signs a browser in, or gives a program its token, once."""

    __tablename__ = "sign_in_codes"
    __table_args__ = (Index(None, "expires_at"), Index(None, "token_id"))

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the code; the code itself is not stored."""
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"))
    """The API token that requested it, and that determines the user of the session; or the token of the program."""
    for_program: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether it gives a program its token, and signs no browser in."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class WebSession(Base):
    """A signed-in browser."""

    __tablename__ = "web_sessions"
    __table_args__ = (Index(None, "expires_at"),)

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the secret in the cookie; the secret itself is not stored."""
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"))
    """The API token of the sign-in. It determines the user, and the session ends with it."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class AuditEntry(Base):
    """A requested change and its outcome."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "created_at"), Index(None, "actor", "pk"), Index(None, "action", "pk"))

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    created_at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(128))
    token_id: Mapped[str | None] = mapped_column(String(32))
    role: Mapped[str | None] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str | None] = mapped_column(String(256))
    address: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(16))
    status: Mapped[int | None]
    detail: Mapped[dict[str, Any]]
