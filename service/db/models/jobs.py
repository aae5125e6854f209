"""Tables of jobs: the job, its labels, attempts, executions, events and checkpoints, and sweeps."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import Json, PublicId


class Job(Base):
    """What a person asked for, and what became of it. Keeps its id for life."""

    __tablename__ = "jobs"
    # Filters of job lists have an index that ends with the id, by which pages are ordered.
    __table_args__ = (
        Index(None, "status", "id"),
        Index(None, "name", "id"),
        Index(None, "created_by", "id"),
        Index(None, "created_by", "disk_bytes"),
        Index(None, "created_by", "status"),
        Index(None, "measured_at"),
        # Partial, so that SQLite cannot choose it for the jobs without a requested deletion, which are nearly all.
        Index(
            None,
            "deletion_requested_at",
            sqlite_where=text("deletion_requested_at IS NOT NULL"),
            postgresql_where=text("deletion_requested_at IS NOT NULL"),
        ),
        Index(None, "sweep_id", "id"),
    )

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    """Short key for the tables that have many rows a job."""
    id: Mapped[str] = mapped_column(PublicId, unique=True)
    """Public; sorts by time of creation."""
    name: Mapped[str] = mapped_column(String(120))
    status: Mapped[str] = mapped_column(String(16))
    status_reason: Mapped[str | None] = mapped_column(String(32))
    status_message: Mapped[str] = mapped_column(Text, default="")
    desired: Mapped[str] = mapped_column(String(16), default="run")
    spec: Mapped[dict[str, Any]]
    labels: Mapped[dict[str, Any]]
    created_by: Mapped[str] = mapped_column(String(128))
    submitter_role: Mapped[str] = mapped_column(String(16), default="user", server_default="user")
    """The role with which it was submitted."""
    gpus: Mapped[int] = mapped_column(default=1, server_default="1")
    """Of its spec."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    sequence: Mapped[int] = mapped_column(default=0)
    """Rises with everything that the job's stream shows; the UPDATE that raises it also makes writers of one job wait
    in line, so that no reader sees a number before a smaller one."""
    attempts: Mapped[int] = mapped_column(default=0)
    next_execution: Mapped[int] = mapped_column(default=1)
    retries_used: Mapped[int] = mapped_column(default=0)
    continuations_without_progress: Mapped[int] = mapped_column(default=0)
    """Continuations in a row that began without a newer checkpoint."""
    last_checkpoint_step: Mapped[int | None]
    progress: Mapped[dict[str, Any] | None] = mapped_column(Json)
    latest: Mapped[dict[str, Any]] = mapped_column(default=dict)
    failure: Mapped[dict[str, Any] | None] = mapped_column(Json)
    attempt_id: Mapped[str | None] = mapped_column(String(32))
    """The current attempt."""
    first_execution: Mapped[int] = mapped_column(default=1, server_default="1")
    """Since the last retry from scratch: what lower executions left is not gone on from."""
    pause_requested_at: Mapped[datetime | None]
    origin: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The checkpoint of another job from which it starts, as `trainyard.contract.wire.launch.Origin`."""
    disk_bytes: Mapped[int | None]
    """Of its run directory, when it was last measured."""
    measured_at: Mapped[datetime | None]
    deletion_requested_at: Mapped[datetime | None]
    """When its deletion was asked for: from then on nobody sees it."""
    sweep_id: Mapped[str | None] = mapped_column(String(40))
    """The sweep of which it is a member."""
    sweep_parallel: Mapped[int | None]
    """How many members of that sweep the scheduler may have at once."""


class JobLabel(Base):
    """A job's `metadata`, to find it by."""

    __tablename__ = "job_labels"
    __table_args__ = (Index(None, "job_id", "key", "value"),)

    key: Mapped[str] = mapped_column(String(512), primary_key=True)
    value: Mapped[str] = mapped_column(String(512), primary_key=True)
    job_id: Mapped[str] = mapped_column(PublicId, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


class Attempt(Base):
    """One entry in the scheduler's queue."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("job_pk", "number"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    number: Mapped[int]
    tag: Mapped[str] = mapped_column(String(64), unique=True)
    scheduler: Mapped[str] = mapped_column(String(16))
    scheduler_id: Mapped[str | None] = mapped_column(String(64))
    script: Mapped[str] = mapped_column(Text, default="")
    token_hash: Mapped[str] = mapped_column(String(64))
    execution: Mapped[int]
    """Its first; an in-place restart has the next one."""
    max_restarts: Mapped[int]
    created_at: Mapped[datetime]
    last_submit_at: Mapped[datetime | None]
    """The latest time at which the scheduler may have been asked: while the question is under way, when that is given
    up at the latest. None: it was not asked."""
    submitted_at: Mapped[datetime | None]
    absence_checks: Mapped[int] = mapped_column(default=0)
    """Successful look-ups that found nothing since the ambiguous submission."""
    estimated_start: Mapped[datetime | None]
    """While it waits: the scheduler's guess."""
    claim_nonce: Mapped[str | None] = mapped_column(String(64))
    claimed_at: Mapped[datetime | None]
    nodes: Mapped[list[Any]] = mapped_column(default=list)
    heartbeat_at: Mapped[datetime | None]
    reported_execution: Mapped[int | None]
    """The highest that has reported, and the step it resumed from."""
    resumed_from_step: Mapped[int | None]
    checkpoint_step: Mapped[int | None]
    """The job's newest checkpoint when the attempt began."""
    finish: Mapped[dict[str, Any] | None] = mapped_column(Json)
    ended_at: Mapped[datetime | None]
    exit_reason: Mapped[str | None] = mapped_column(String(32))
    failed_node: Mapped[str | None] = mapped_column(String(64))
    """The node that failed it, by the scheduler's name."""
    excluded_nodes: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Nodes that failed earlier attempts and are not to run this one."""


class Execution(Base):
    """One start of the ranks. What it resumed from hides what lower executions reported after that step."""

    __tablename__ = "executions"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    attempt_id: Mapped[str] = mapped_column(String(32))
    resumed_from_step: Mapped[int]
    created_at: Mapped[datetime]


class Event(Base):
    """A line of a job's history. A worker's event is stored once, whatever is delivered twice."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "job_pk", "sequence"), UniqueConstraint("job_pk", "execution", "worker_sequence"))

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    sequence: Mapped[int]
    type: Mapped[str] = mapped_column(String(64))
    level: Mapped[str] = mapped_column(String(8))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    execution: Mapped[int | None]
    worker_sequence: Mapped[int | None]


class Checkpoint(Base):
    """A complete checkpoint, for as long as its files are kept."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("job_pk", "step"), Index(None, "job_pk", "sequence"), Index(None, "removing"))

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    step: Mapped[int]
    execution: Mapped[int]
    size_bytes: Mapped[int]
    digest: Mapped[str] = mapped_column(String(80))
    world_size: Mapped[int]
    metrics: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    removing: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Its deletion was asked for, and its files may still be there."""
    sequence: Mapped[int]


class Sweep(Base):
    """One spec in several variants. Its members are jobs that name it."""

    __tablename__ = "sweeps"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    created_by: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]
    max_parallel: Mapped[int | None]
    members: Mapped[list[Any]]
    """As submitted, in order: `{"job_id", "values"}` each."""


class IdempotencyKey(Base):
    """The first answer to a keyed request, replayed to the same request again."""

    __tablename__ = "idempotency_keys"

    principal: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    response: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
