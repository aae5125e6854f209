"""Tables of the scheduler: leader lease, cluster snapshot, node faults, maintenance mode, start estimates, orphans."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import PublicId


class Lease(Base):
    """The leader lease. The owner is the service that leads; the term rises whenever the owner changes."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64))
    term: Mapped[int]
    expires_at: Mapped[datetime]


class Cluster(Base):
    """The newest cluster snapshot of a backend."""

    __tablename__ = "clusters"

    backend: Mapped[str] = mapped_column(String(16), primary_key=True)
    polled_at: Mapped[datetime]
    taken_at: Mapped[datetime | None]
    """Time of the snapshot. `polled_at` is the time of the last query, even if it failed."""
    snapshot: Mapped[dict[str, Any]]
    error: Mapped[str | None] = mapped_column(Text)
    """Error of the last query; None if it succeeded."""


class NodeFault(Base):
    """An attempt that failed because of a node. A row is deleted after a day, or when an administrator makes the node
    available again (`trainyard cluster --include`)."""

    __tablename__ = "node_faults"
    __table_args__ = (Index(None, "created_at"),)

    attempt_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    node: Mapped[str] = mapped_column(String(64))
    """The scheduler's name of the node."""
    job_id: Mapped[str] = mapped_column(PublicId)
    created_by: Mapped[str] = mapped_column(String(128))
    """The owner of the job."""
    attempt: Mapped[int]
    """The number of the attempt."""
    kind: Mapped[str] = mapped_column(String(16))
    """A value of `trainyard.contract.wire.cluster.FaultKind`."""
    message: Mapped[str] = mapped_column(Text)
    """The message of Slurm or of the worker."""
    created_at: Mapped[datetime]


class MaintenanceMode(Base):
    """The maintenance mode of a service; without a row it is off."""

    __tablename__ = "maintenance_mode"

    instance: Mapped[str] = mapped_column(String(32), primary_key=True)
    since: Mapped[datetime]
    started_by: Mapped[str] = mapped_column(String(128))
    message: Mapped[str] = mapped_column(Text)


class StartEstimate(Base):
    """A user's request for a start estimate, and the reconciler's answer."""

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


class Orphan(Base):
    """An entry of the scheduler's queue, or a run directory, that no job of the database names."""

    __tablename__ = "orphans"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    """The job's id if there is a run directory, else the tag."""
    job_id: Mapped[str | None] = mapped_column(String(40))
    """The job's id, which is the name of the run directory."""
    name: Mapped[str | None] = mapped_column(String(120))
    """The job's name, from its spec on disk."""
    created_by: Mapped[str | None] = mapped_column(String(128))
    """The user who submitted the job, according to the run directory; the job could have changed it."""
    tag: Mapped[str | None] = mapped_column(String(64))
    scheduler_id: Mapped[str | None] = mapped_column(String(64))
    state: Mapped[str | None] = mapped_column(String(16))
    """`pending` or `running`; None: it is not in the queue."""
    folder: Mapped[str | None] = mapped_column(Text)
    first_observed_at: Mapped[datetime]
    requested: Mapped[str | None] = mapped_column(String(16))
    """The request of an administrator: `cancel` or `adopt`."""
    requested_by: Mapped[str | None] = mapped_column(String(128))
    owner: Mapped[str | None] = mapped_column(String(128))
    """The user to whom the adopted job will belong; None: the user in `requested_by`."""
    message: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Why the request could not be fulfilled."""
