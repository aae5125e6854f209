"""Tables of created projects and of their members. A project that nobody has created is only a label of jobs."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Project(Base):
    """A created project. Its jobs have its name in `jobs.project`, in exactly this case of letters."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(String(120), primary_key=True)
    key: Mapped[str] = mapped_column(String(400), unique=True)
    """The name without case, as `service.projects.rules.project_key` returns it."""
    description: Mapped[str] = mapped_column(Text, default="", server_default="")
    is_private: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether only its members and administrators read its jobs."""
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]
    max_gpus: Mapped[int | None]
    """GPUs that the scheduler may hold at once for its jobs; None: no limit."""
    max_queued: Mapped[int | None]
    """Its jobs with the status `queued`; None: no limit."""


class ProjectMember(Base):
    """A user's role in a created project."""

    __tablename__ = "project_members"
    __table_args__ = (Index(None, "member"),)

    project: Mapped[str] = mapped_column(ForeignKey("projects.name", ondelete="CASCADE"), primary_key=True)
    member: Mapped[str] = mapped_column(String(128), primary_key=True)
    """Name of the user."""
    role: Mapped[str] = mapped_column(String(16))
    """A value of `trainyard.contract.wire.projects.ProjectRole`."""
