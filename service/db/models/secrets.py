"""The table of users' secrets."""

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Secret(Base):
    """A user's secret, which only the ranks of the user's jobs receive."""

    __tablename__ = "secrets"

    owner: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    encrypted: Mapped[str]
    """The value as a Fernet token."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
