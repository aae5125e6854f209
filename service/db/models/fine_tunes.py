"""The table of jobs that were created through OpenAI's API."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import PublicId


class FineTune(Base):
    """The request of a client of OpenAI's API for a job, which is otherwise like any other."""

    __tablename__ = "fine_tunes"

    job_id: Mapped[str] = mapped_column(PublicId, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str] = mapped_column(String(200))
    """Name of the base model."""
    result: Mapped[str] = mapped_column(String(400), unique=True)
    """Name of the model that the job makes."""
    method: Mapped[dict[str, Any]]
    """OpenAI's `method`, with values instead of `auto`."""
    training_file: Mapped[str] = mapped_column(String(64))
    validation_file: Mapped[str | None] = mapped_column(String(64))
    seed: Mapped[int]
    created_at: Mapped[datetime]
    model_deleted_at: Mapped[datetime | None]
    """When the model was deleted; the job remains."""
