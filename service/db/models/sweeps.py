"""Tables of sweeps and of the trials that their searches propose."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import Json, PublicId


class Sweep(Base):
    """Several variants of a spec. Its members are the jobs with its `sweep_id`."""

    __tablename__ = "sweeps"
    __table_args__ = (Index(None, "state"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    created_by: Mapped[str] = mapped_column(String(128))
    project: Mapped[str | None] = mapped_column(String(120))
    """The project of its members at the submission."""
    created_at: Mapped[datetime]
    max_parallel: Mapped[int | None]
    members: Mapped[list[Any]]
    """The members in the order of submission, each `{"job_id", "values"}`. Empty for a search."""
    spec: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The document that the trials of a search change."""
    search: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The plan of a search, `service.plugins.sweeps.search.plan.SearchPlan`."""
    state: Mapped[str | None] = mapped_column(String(16))
    """The state of a search: `running`, `finished`, `cancelled` or `failed`."""
    message: Mapped[str] = mapped_column(Text, default="", server_default="")
    importance: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """In a search, each field's share, by `count`, the number of results that it was computed from."""
    submitter_role: Mapped[str] = mapped_column(String(16), default="user", server_default="user")
    """Role of the user at submission."""
    may_run_code: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether the token of the submission was allowed to run code."""
    force: Mapped[bool] = mapped_column(default=False, server_default=false())


class SweepTrial(Base):
    """One proposal of a search, stored in the transaction that stores its job: no number is proposed twice."""

    __tablename__ = "sweep_trials"

    sweep_id: Mapped[str] = mapped_column(String(40), ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """From 0."""
    job_id: Mapped[str | None] = mapped_column(PublicId, unique=True)
    """None: the proposed spec was rejected, which `message` explains. The row stays when the job is deleted."""
    values: Mapped[dict[str, Any]]
    bracket: Mapped[int] = mapped_column(default=0)
    """The first rung at which the trial is compared."""
    results: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The value at each rung that it has reached, by step."""
    message: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime]
