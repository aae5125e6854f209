"""The table of media that programs logged."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Media(Base):
    """One medium of a job at a step: a file of its artifacts, or a histogram."""

    __tablename__ = "media"
    __table_args__ = (UniqueConstraint("job_pk", "key", "step", "position", "execution"),)

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    key: Mapped[str] = mapped_column(String(250))
    step: Mapped[int]
    position: Mapped[int]
    execution: Mapped[int]
    type: Mapped[str] = mapped_column(String(12))
    caption: Mapped[str | None] = mapped_column(String(2000))
    path: Mapped[str | None] = mapped_column(String(1000))
    histogram: Mapped[dict[str, Any] | None]
    width: Mapped[int | None]
    height: Mapped[int | None]
    format: Mapped[str | None] = mapped_column(String(20))
    time: Mapped[datetime]
    spool_position: Mapped[int | None]
    """The place of the item in its spool, as `service.core.positions`. None: the report did not name it."""
