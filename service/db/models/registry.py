"""Tables of registered models: names, and their versions, each a model of a job."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import Json, ModelName, PublicId


class RegisteredModel(Base):
    """A name under which versions of a model are registered."""

    __tablename__ = "registered_models"
    __table_args__ = (Index(None, "created_by"),)

    name: Mapped[str] = mapped_column(ModelName, primary_key=True)
    description: Mapped[str] = mapped_column(Text, default="")
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    last_version: Mapped[int] = mapped_column(default=0)
    """The highest number that was ever given: numbers of deleted versions are not given again."""
    aliases: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    """Numbers of versions by alias."""


class ModelVersion(Base):
    """A version: the export or a checkpoint of a job. The job cannot be deleted meanwhile."""

    __tablename__ = "model_versions"
    __table_args__ = (Index(None, "job_id"),)

    model: Mapped[str] = mapped_column(
        ModelName, ForeignKey("registered_models.name", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(PublicId, ForeignKey("jobs.id"))
    checkpoint_id: Mapped[str | None] = mapped_column(String(40))
    """None: the version is the job's export."""
    step: Mapped[int | None]
    digest: Mapped[str] = mapped_column(String(80))
    """SHA-256 of `export.json`, or of the checkpoint's manifest."""
    metrics: Mapped[dict[str, Any]]
    lineage: Mapped[dict[str, Any]]
    """The job's name and task, the data, the base model and the parent at registration."""
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]
