"""Tables of webhooks and of their outbox."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Webhook(Base):
    """A URL that receives notifications of status changes."""

    __tablename__ = "webhooks"
    __table_args__ = (Index(None, "created_by"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(String(128))
    """In plain text, because a signature needs the secret itself."""
    statuses: Mapped[list[Any]]
    jobs: Mapped[str] = mapped_column(String(8))
    format: Mapped[str] = mapped_column(String(16), default="trainyard", server_default="trainyard")
    """Form of the messages, as `WebhookFormat`."""
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(default=0)
    """Consecutive failures."""
    failing_since: Mapped[datetime | None]


class Delivery(Base):
    """A notification for a webhook. Stored in the transaction of its event and sent later."""

    __tablename__ = "deliveries"
    __table_args__ = (Index(None, "next_at"), Index(None, "webhook_id", "id"))

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(32))
    job_id: Mapped[str | None] = mapped_column(String(40))
    body: Mapped[str] = mapped_column(Text)
    """The body as JSON; the webhook's format turns it into the text that is signed and sent."""
    created_at: Mapped[datetime]
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime | None]
    """Time of the next try; None after the delivery succeeded or was given up."""
    delivered_at: Mapped[datetime | None]
    answer_status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(String(256))
