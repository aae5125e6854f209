"""The table of questions to the scheduler."""

from datetime import datetime

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models import Base


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
