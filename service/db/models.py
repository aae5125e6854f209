"""The tables."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.db.types import BigInt, Json, PublicId, UtcTime


class Base(DeclarativeBase):
    """Every constraint has a name, so that migrations can change it on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcTime, dict[str, Any]: Json, list[Any]: Json, int: BigInt}  # noqa: RUF012


class Job(Base):
    """What a person asked for, and what became of it. Keeps its id for life."""

    __tablename__ = "jobs"
    # With the id, by which every list is ordered: a page is a few steps along one index, however many jobs there are.
    __table_args__ = (
        Index(None, "status", "id"),
        Index(None, "name", "id"),
        Index(None, "created_by", "id"),
        Index(None, "created_by", "disk_bytes"),
        Index(None, "created_by", "status"),
        Index(None, "measured_at"),
        Index(None, "deletion_requested_at"),
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


class MetricKey(Base):
    """A metric's name, once."""

    __tablename__ = "metric_keys"

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(250), unique=True)


class Point(Base):
    """One value. `special` is set where SQLite has no number for it: 1 NaN, 2 infinity, 3 minus infinity.

    The job and the metric are in no foreign key: to look both up costs more than to store the point. Whoever writes
    holds the job's row, and the job is deleted with its points (see docs/decisions/0043).
    """

    __tablename__ = "points"
    __table_args__ = (Index(None, "job_pk", "sequence"), {"sqlite_with_rowid": False})

    job_pk: Mapped[int] = mapped_column(primary_key=True)
    key_pk: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    execution: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None] = mapped_column(Double)
    special: Mapped[int] = mapped_column(SmallInteger, default=0)
    time: Mapped[datetime]
    sequence: Mapped[int]


class JobKey(Base):
    """A metric that a job has. Without it, listing a job's metrics would read every point."""

    __tablename__ = "job_keys"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    key_pk: Mapped[int] = mapped_column(ForeignKey("metric_keys.pk"), primary_key=True)


class DownsampledPoint(Base):
    """A point that stands out in its bucket of steps, at one of several widths: see service/metrics/downsampling.

    Without foreign keys, as the points themselves; whoever writes holds the job's row of `downsample_states`.
    """

    __tablename__ = "downsampled_points"
    __table_args__ = ({"sqlite_with_rowid": False},)

    job_pk: Mapped[int] = mapped_column(primary_key=True)
    key_pk: Mapped[int] = mapped_column(primary_key=True)
    level: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    execution: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None] = mapped_column(Double)
    special: Mapped[int] = mapped_column(SmallInteger, default=0)
    time: Mapped[datetime]


class DownsampleState(Base):
    """How far a job's points have been thinned."""

    __tablename__ = "downsample_states"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int]
    """Everything up to this place of the job's sequence is in the buckets."""
    shift: Mapped[int] = mapped_column(SmallInteger)
    """The job's points are about two to the power of this many steps apart."""
    raw_deleted: Mapped[bool] = mapped_column(default=False)
    """Retention has taken the points themselves."""


class FeedEntry(Base):
    """A stretch of one job's sequence, in the order in which the stream of all jobs tells them."""

    __tablename__ = "feed"

    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    first: Mapped[int]
    last: Mapped[int]


class FeedSequence(Base):
    """The newest number of the feed. Its row is locked by whoever adds to the feed, so that numbers appear in order."""

    __tablename__ = "feed_sequences"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int]


class FeedCursor(Base):
    """How far of a job's sequence is in the feed."""

    __tablename__ = "feed_cursors"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int]


class LogStream(Base):
    """How much of one rank's log has arrived."""

    __tablename__ = "log_streams"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[str] = mapped_column(String(16), primary_key=True)
    size: Mapped[int] = mapped_column(default=0)


class LogChunk(Base):
    """Consecutive bytes of a log."""

    __tablename__ = "log_chunks"
    __table_args__ = (UniqueConstraint("attempt_id", "rank", "offset"), Index(None, "job_pk", "sequence"))

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"))
    rank: Mapped[str] = mapped_column(String(16))
    offset: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    sequence: Mapped[int]


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


class Token(Base):
    """An API token; only its hash is kept."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    hash: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    may_run_code: Mapped[bool] = mapped_column(default=False, server_default=false())
    created_by: Mapped[str | None] = mapped_column(String(128))
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    """To the minute."""
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class IdempotencyKey(Base):
    """The first answer to a keyed request, replayed to the same request again."""

    __tablename__ = "idempotency_keys"

    principal: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    response: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Lease(Base):
    """Who reconciles. The term rises with every change of hands."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64))
    term: Mapped[int]
    expires_at: Mapped[datetime]


class Cluster(Base):
    """What the scheduler of a backend had to run on when it was last asked."""

    __tablename__ = "clusters"

    backend: Mapped[str] = mapped_column(String(16), primary_key=True)
    polled_at: Mapped[datetime]
    taken_at: Mapped[datetime | None]
    """Of the newest answer."""
    snapshot: Mapped[dict[str, Any]]
    error: Mapped[str | None] = mapped_column(Text)
    """Why there was no answer when it was last asked."""
