"""Tables of the runs table: the values by which jobs are filtered and sorted, and saved views."""

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Double, ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import PublicId, ValueText


class ValueKey(Base):
    """The name of something that jobs have values of, and the number that stands for it in `job_values`."""

    __tablename__ = "value_keys"
    __table_args__ = (UniqueConstraint("kind", "name"),)

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(12))
    """One of `service.jobs.table.keys.Kind`."""
    name: Mapped[str] = mapped_column(String(512))


class JobValue(Base):
    """A value of a job: of a field of its spec, of a parameter, a tag or a metric. It is a number or a text."""

    __tablename__ = "job_values"
    # Filters and sorts read a key's values in their order; the last column is the cursor of pages.
    __table_args__ = (
        Index(None, "key_pk", "number", "job_pk"),
        Index(
            None,
            "key_pk",
            "text",
            "job_pk",
            sqlite_where=text("text IS NOT NULL"),
            postgresql_where=text("text IS NOT NULL"),
        ),
        {"sqlite_with_rowid": False},
    )

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    key_pk: Mapped[int] = mapped_column(primary_key=True)
    """Without a foreign key, whose check costs more than the INSERT; keys are never deleted."""
    number: Mapped[float | None] = mapped_column(Double)
    text: Mapped[str | None] = mapped_column(ValueText)


class ValueState(Base):
    """How far the values of a job's metrics are up to date."""

    __tablename__ = "value_states"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int]
    """Points up to this number of the job's sequence are in its values."""
    executions: Mapped[list[Any]]
    """The executions that the values were computed with, each as [number, step that it resumed from]."""


class SavedView(Base):
    """A named view of the runs table."""

    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("created_by", "name"), Index(None, "shared", "id"))

    id: Mapped[str] = mapped_column(PublicId, primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    created_by: Mapped[str] = mapped_column(String(128))
    shared: Mapped[bool] = mapped_column(Boolean)
    """Whether other users see it. Only its owner and administrators change it."""
    project: Mapped[str | None] = mapped_column(String(120))
    """The project whose page shows it. In a private project only its members see it."""
    state: Mapped[dict[str, Any]]
    """Filter, sort, columns and the rest of the page's state, as `trainyard.contract.wire.views.ViewState`."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
