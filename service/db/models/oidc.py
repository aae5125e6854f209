"""Tables of the sign-in by an OpenID provider."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class OidcUser(Base):
    """A user whose name belongs to a subject of a provider."""

    __tablename__ = "oidc_users"

    issuer: Mapped[str] = mapped_column(String(512), primary_key=True)
    subject: Mapped[str] = mapped_column(String(255), primary_key=True)
    """As the provider states it: subjects are compared with case, and only with the issuer."""
    name: Mapped[str] = mapped_column(String(128))
    """Name of the user, from the claim of the first sign-in."""
    name_key: Mapped[str] = mapped_column(String(128), unique=True)
    """The name in lower case."""
    created_at: Mapped[datetime]
    signed_in_at: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    """Since when the user cannot sign in."""


class OidcRequest(Base):
    """A sign-in that a browser has started at the provider. It is removed when the browser comes back."""

    __tablename__ = "oidc_requests"
    __table_args__ = (Index(None, "expires_at"),)

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the state."""
    browser: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the secret in the browser's cookie."""
    nonce: Mapped[str] = mapped_column(String(64))
    verifier: Mapped[str] = mapped_column(String(128))
    """Of PKCE. It is worth nothing without the code, which the browser brings back."""
    target: Mapped[str] = mapped_column(String(2000))
    """The page to open after the sign-in, a path of this service."""
    session: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the secret of the session that the browser had; empty: none."""
    expires_at: Mapped[datetime]


class OidcToken(Base):
    """A token that comes from a sign-in by the provider."""

    __tablename__ = "oidc_tokens"
    __table_args__ = (Index(None, "issuer", "subject"),)

    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), primary_key=True)
    issuer: Mapped[str] = mapped_column(String(512))
    subject: Mapped[str] = mapped_column(String(255))
    id_token: Mapped[str | None] = mapped_column(Text)
    """The provider's ID token, a hint for the sign-out there; empty: it was too long. None: the token of a program,
    which has no session at the provider."""
    expires_at: Mapped[datetime]
