"""Tables of jobs: the job, its labels, attempts, executions, events and checkpoints."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Computed, ForeignKey, Index, String, Text, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base
from service.db.types import BigInt, Json, OptionalJson, PublicId


class Job(Base):
    """A job: its spec, its desired state and its actual state."""

    __tablename__ = "jobs"
    # Filters of job lists have an index that ends with the id, by which pages are ordered.
    __table_args__ = (
        Index(None, "status", "id"),
        Index(None, "name", "id"),
        Index(None, "project", "id"),
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
        Index(
            None,
            "archived_at",
            sqlite_where=text("archived_at IS NOT NULL"),
            postgresql_where=text("archived_at IS NOT NULL"),
        ),
        Index(
            None,
            "condition",
            sqlite_where=text("condition IS NOT NULL"),
            postgresql_where=text("condition IS NOT NULL"),
        ),
        Index(None, "sweep_id", "id"),
        Index(None, "started_at", "id"),
        Index(None, "finished_at", "id"),
        Index(None, "runtime", "id"),
    )

    pk: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    """Internal key, for tables with many rows per job."""
    id: Mapped[str] = mapped_column(PublicId, unique=True)
    """Public id; sorts by time of creation."""
    name: Mapped[str] = mapped_column(String(120))
    project: Mapped[str | None] = mapped_column(String(120))
    status: Mapped[str] = mapped_column(String(16))
    status_reason: Mapped[str | None] = mapped_column(String(32))
    status_message: Mapped[str] = mapped_column(Text, default="")
    desired: Mapped[str] = mapped_column(String(16), default="run")
    spec: Mapped[dict[str, Any]]
    labels: Mapped[dict[str, Any]]
    created_by: Mapped[str] = mapped_column(String(128))
    submitter_role: Mapped[str] = mapped_column(String(16), default="user", server_default="user")
    """Role of the user at submission."""
    unix_uid: Mapped[int | None] = mapped_column(BigInteger)
    """The Unix account as which the job runs; None: the service's account."""
    condition: Mapped[str | None] = mapped_column(String(32))
    """The reason why it waits, or an unusual fact about it, as `service.jobs.conditions.Condition.code`."""
    condition_data: Mapped[dict[str, Any] | None] = mapped_column(Json)
    gpus: Mapped[int] = mapped_column(default=1, server_default="1")
    """Number of GPUs in the spec, for quotas."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    runtime: Mapped[int | None] = mapped_column(BigInt, Computed("finished_at - started_at"))
    """Microseconds from the first start to the end, of a job that has ended."""
    archived_at: Mapped[datetime | None]
    """Since when lists leave the job out unless they are asked for it."""
    sequence: Mapped[int] = mapped_column(default=0)
    """The newest number of the job's sequence: each entry of the job's stream has a number. The UPDATE that raises it
    locks the row, so that the numbers of a job are committed in order."""
    attempts: Mapped[int] = mapped_column(default=0)
    next_execution: Mapped[int] = mapped_column(default=1)
    retries_used: Mapped[int] = mapped_column(default=0)
    continuations_without_progress: Mapped[int] = mapped_column(default=0)
    """Continuations in a row that began without a newer checkpoint."""
    last_checkpoint_step: Mapped[int | None]
    progress: Mapped[dict[str, Any] | None] = mapped_column(Json)
    latest: Mapped[dict[str, Any]] = mapped_column(default=dict)
    latest_points: Mapped[dict[str, Any] | None] = mapped_column(Json, deferred=True)
    """The points of the values in `latest`, as `service.metrics.ingest.repository.JobState`."""
    parameters: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The program's reports about itself, as `service.jobs.parameters.Reported`."""
    failure: Mapped[dict[str, Any] | None] = mapped_column(Json)
    attempt_id: Mapped[str | None] = mapped_column(String(32))
    """The current attempt."""
    first_execution: Mapped[int] = mapped_column(default=1, server_default="1")
    """First execution since the last retry from scratch; checkpoints of lower executions are not resumed from."""
    open_spool: Mapped[int | None]
    """Number of the attempt that ended without an exit record, while its processes may still write reports."""
    pause_requested_at: Mapped[datetime | None]
    """When the job was asked to pause, did so by itself, or was retried, unless it has been running since."""
    origin: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """Checkpoint of another job from which this job starts, as `trainyard.contract.wire.launch.Origin`."""
    disk_bytes: Mapped[int | None]
    """Size of the run directory at `measured_at`."""
    measured_at: Mapped[datetime | None]
    deletion_requested_at: Mapped[datetime | None]
    """Time of the deletion request. From then on the API hides the job."""
    sweep_id: Mapped[str | None] = mapped_column(String(40))
    """The sweep of which the job is a member."""
    sweep_parallel: Mapped[int | None]
    """Maximum number of members of that sweep at the scheduler at once."""
    has_prerequisites: Mapped[bool] = mapped_column(server_default=false())
    """Whether the job has rows in `job_dependencies` for its prerequisites."""
    pause_at_step: Mapped[int | None]
    """The step after which the worker saves a checkpoint and pauses by itself."""


class JobDependency(Base):
    """A job that must have ended before another job is submitted."""

    __tablename__ = "job_dependencies"
    __table_args__ = (Index(None, "prerequisite_id"),)

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    """The job that waits."""
    prerequisite_id: Mapped[str] = mapped_column(PublicId, primary_key=True)
    """The job that must have ended. It may be deleted before the other job starts."""
    any_end: Mapped[bool]
    """Whether it may have ended in any way; else it must have succeeded."""
    deleted_as: Mapped[str | None] = mapped_column(String(16))
    """The status in which the prerequisite was deleted."""


class JobLabel(Base):
    """An entry of a job's `metadata`, for filters of job lists."""

    __tablename__ = "job_labels"
    __table_args__ = (Index(None, "job_id", "key", "value"),)

    key: Mapped[str] = mapped_column(String(512), primary_key=True)
    value: Mapped[str] = mapped_column(String(512), primary_key=True)
    job_id: Mapped[str] = mapped_column(PublicId, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


class JobParameter(Base):
    """A reported parameter of a job, for filters of job lists."""

    __tablename__ = "job_parameters"
    __table_args__ = (Index(None, "job_id", "key", "value"),)

    key: Mapped[str] = mapped_column(String(250), primary_key=True)
    value: Mapped[str] = mapped_column(String(200), primary_key=True)
    """As `trainyard.contract.parameter_text.index_text` returns it."""
    job_id: Mapped[str] = mapped_column(PublicId, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


class Attempt(Base):
    """One entry in the scheduler's queue."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_pk", "number"),
        Index(
            None,
            "ended_at",
            sqlite_where=text("open_evidence IS NOT NULL"),
            postgresql_where=text("open_evidence IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"))
    number: Mapped[int]
    folder: Mapped[str | None] = mapped_column(String(64))
    """Name of its folder in the run directory. None: the number, as former releases named it."""
    tag: Mapped[str] = mapped_column(String(64), unique=True)
    scheduler: Mapped[str] = mapped_column(String(16))
    scheduler_id: Mapped[str | None] = mapped_column(String(64))
    script: Mapped[str] = mapped_column(Text, default="")
    token_hash: Mapped[str] = mapped_column(String(64))
    execution: Mapped[int]
    """First execution of the attempt; each in-place restart has the next number."""
    max_restarts: Mapped[int]
    created_at: Mapped[datetime]
    last_submit_at: Mapped[datetime | None]
    """The latest time at which the scheduler may have received the attempt: the timeout of the call while it runs,
    then the time of the call. None: the scheduler was never called."""
    submitted_at: Mapped[datetime | None]
    absence_checks: Mapped[int] = mapped_column(default=0)
    """Lookups since the unconfirmed submission that did not find the attempt."""
    estimated_start: Mapped[datetime | None]
    """The scheduler's estimate while the attempt is pending."""
    claim_nonce: Mapped[str | None] = mapped_column(String(64))
    claimed_at: Mapped[datetime | None]
    nodes: Mapped[list[Any]] = mapped_column(default=list)
    heartbeat_at: Mapped[datetime | None]
    reported_execution: Mapped[int | None]
    """The highest execution that has reported; `resumed_from_step` belongs to it."""
    resumed_from_step: Mapped[int | None]
    checkpoint_step: Mapped[int | None]
    """Step of the job's newest checkpoint at the start of the attempt."""
    finish: Mapped[dict[str, Any] | None] = mapped_column(Json)
    limit_ends_at: Mapped[datetime | None]
    """When the time limit ends the attempt, as last observed."""
    spool_unread: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether the database was restored since, and may lack acknowledged reports: the spool is read from its start."""
    stop_requested_at: Mapped[datetime | None]
    """When the worker was first requested to stop because Slurm had ended the attempt although it still ran."""
    ended_at: Mapped[datetime | None]
    exit_reason: Mapped[str | None] = mapped_column(String(32))
    scheduler_end: Mapped[str | None] = mapped_column(Text)
    """The scheduler's own report of the end: state, by whom it was cancelled, exit code, why a node failed."""
    open_evidence: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)
    """The evidence of an end that the accounting had not recorded, and may explain later."""
    failed_node: Mapped[str | None] = mapped_column(String(64))
    """The node that made the attempt fail, by the scheduler's name."""
    excluded_nodes: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Nodes that made earlier attempts fail; the scheduler must not use them for this attempt."""
    cluster_exclusions: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Further nodes that it must not use, because attempts of several jobs did not start there."""

    @property
    def folder_name(self) -> str:
        return self.folder or str(self.number)

    @property
    def executions(self) -> range:
        """The executions that belong to the attempt, in-place restarts included."""
        return range(self.execution, self.execution + self.max_restarts + 1)


class Execution(Base):
    """One start of the ranks. Points of lower executions after `resumed_from_step` are hidden."""

    __tablename__ = "executions"

    job_pk: Mapped[int] = mapped_column(ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    attempt_id: Mapped[str] = mapped_column(String(32))
    resumed_from_step: Mapped[int]
    created_at: Mapped[datetime]


class Event(Base):
    """An event of a job's history. A worker's event is unique by execution and `worker_sequence`."""

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
    """A complete checkpoint. The row remains after its files are deleted."""

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
    seconds: Mapped[float | None]
    """How long the save took. None: unknown."""
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    removing: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its deletion was requested; its files may still exist."""
    sequence: Mapped[int]


class IdempotencyKey(Base):
    """The response to a request with an idempotency key, replayed to repeated requests."""

    __tablename__ = "idempotency_keys"

    principal: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    response: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
