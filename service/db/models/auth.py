"""Tables of API tokens, browser sessions and the audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, false
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Token(Base):
    """An API token; only its hash is kept."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    hash: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    may_run_code: Mapped[bool] = mapped_column(default=False, server_default=false())
    created_by: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    """To the minute."""
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class WebSession(Base):
    """Somebody is signed in with a browser."""

    __tablename__ = "web_sessions"
    __table_args__ = (Index(None, "expires_at"),)

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Of the cookie's secret, which is kept nowhere."""
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"))
    """What they signed in with: it says who they are, and the session ends with it."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class AuditEntry(Base):
    """One change that somebody asked for, and what came of it."""

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
