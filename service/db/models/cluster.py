"""Tables of the scheduler: leader lease, cluster snapshot and start estimates."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Lease(Base):
    """Who reconciles. The term rises with every change of hands."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64))
    term: Mapped[int]
    expires_at: Mapped[datetime]


class Cluster(Base):
    """What the scheduler of a backend had to run on when it was last asked."""

    __tablename__ = "clusters"

    backend: Mapped[str] = mapped_column(String(16), primary_key=True)
    polled_at: Mapped[datetime]
    taken_at: Mapped[datetime | None]
    """Of the newest answer."""
    snapshot: Mapped[dict[str, Any]]
    error: Mapped[str | None] = mapped_column(Text)
    """Why there was no answer when it was last asked."""


class StartEstimate(Base):
    """What would become of a batch script, were it submitted: asked by a person, answered by the reconciler."""

    __tablename__ = "start_estimates"
    __table_args__ = (Index(None, "answered_at"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]
    script: Mapped[str] = mapped_column(Text)
    answered_at: Mapped[datetime | None]
    accepted: Mapped[bool | None]
    estimated_start: Mapped[datetime | None]
    message: Mapped[str | None] = mapped_column(Text)
