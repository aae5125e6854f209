"""What the service answers: one model a resource, shared by the service and its clients."""

from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from trainyard.contract.base import AnyFloat, NonNegativeInt, Resource, Strict, Timestamp, no_bool
from trainyard.contract.validation_messages import SLURM_ID
from trainyard.contract.wire.examples import JOB
from trainyard.contract.wire.launch import Origin
from trainyard.contract.wire.reports import Failure, Point, Progress

JobStatus = Literal[
    "queued",
    "submitting",
    "pending",
    "running",
    "pausing",
    "paused",
    "cancelling",
    "lost",
    "succeeded",
    "failed",
    "cancelled",
]
Desired = Literal["run", "paused", "cancelled"]
StatusReason = Literal[
    "completed",
    "user_cancelled",
    "cancelled_outside",
    "error",
    "out_of_memory",
    "time_limit",
    "node_failure",
    "preempted",
    "stalled",
    "rejected",
    "retries_exhausted",
]

TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})

T = TypeVar("T")


class Page(Resource, Generic[T]):
    """One page of a list; the next starts with `?after=<last_id>`."""

    # Nothing below is documented, and looking for it in the source, once for each kind of item, took half a second.
    model_config = ConfigDict(use_attribute_docstrings=False)

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class ErrorBody(Resource):
    """What went wrong."""

    message: str
    type: str
    """`invalid_request_error`, `authentication_error`, `permission_error`, `not_found_error`, `conflict_error`,
    `rate_limit_error` or `server_error`."""
    param: str | None = None
    """The field or parameter at fault."""
    code: str


class ErrorEnvelope(Resource):
    """The one form of every error, on every route."""

    error: ErrorBody
    problems: list[dict[str, str]] | None = None
    """Every problem found in a spec, each with `param` and `message`; the first is the one in `error`."""


class JobProgress(Progress):
    """Progress as the service tells it; open like every resource, unlike the worker's report that it extends."""

    model_config = ConfigDict(extra="ignore")

    eta_seconds: float | None = None


class AttemptResource(Resource):
    """One entry in the scheduler's queue."""

    object: Literal["attempt"] = "attempt"
    id: str
    number: int
    scheduler: str
    scheduler_id: str | None = None
    nodes: list[str] = Field(default_factory=list)
    created_at: Timestamp
    submitted_at: Timestamp | None = None
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    execution: int | None = None
    """The highest execution that has reported."""
    resumed_from_step: int | None = None
    exit_reason: str | None = None


class JobResource(Resource):
    """A job: what was asked, what is so, and how far it is."""

    model_config = ConfigDict(json_schema_extra={"example": JOB})

    object: Literal["job"] = "job"
    id: str
    name: str
    status: JobStatus
    status_reason: StatusReason | None = None
    status_message: str
    """In plain words: what it is doing, or why it waits."""
    desired: Desired
    created_by: str
    created_at: Timestamp
    updated_at: Timestamp
    sequence: int = 0
    """Its place in its stream: `?after=` it follows what happens from now on."""
    estimated_start: Timestamp | None = None
    """While pending: when the scheduler expects to start it, where it says so."""
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    progress: JobProgress | None = None
    attempt: AttemptResource | None = None
    """The current one."""
    metrics: dict[str, AnyFloat | None] = Field(default_factory=dict)
    """The latest value of each metric."""
    last_checkpoint_step: int | None = None
    origin: Origin | None = None
    """The checkpoint of another job from which it starts."""
    error: Failure | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    spec: dict[str, Any]
    """Resolved: what is run."""
    run_directory: str
    disk_bytes: int | None = None
    """Of the run directory, when it was last measured."""
    sweep_id: str | None = None
    """The sweep of which it is a member."""


class UserUsage(Resource):
    """What one person's jobs hold on disk."""

    name: str
    jobs: int
    disk_bytes: int


class UsageResource(Resource):
    """Disk use, measured in the background: by person and in all."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "usage",
                "users": [{"name": "admin", "jobs": 12, "disk_bytes": 3_400_000_000}],
                "disk_bytes": 3_400_000_000,
                "free_bytes": 120_000_000_000,
                "quota_bytes_per_user": 50_000_000_000,
            }
        }
    )

    object: Literal["usage"] = "usage"
    users: list[UserUsage]
    disk_bytes: int
    free_bytes: int
    """Left on the filesystem of the runs."""
    quota_bytes_per_user: int | None = None
    """A person whose jobs hold as much can submit no more."""


class ProfileRequest(Strict):
    """The body of `POST /v1/jobs/{id}/profile`."""

    steps: Annotated[int, Field(ge=1, le=1000), BeforeValidator(no_bool)] = 3
    """How many updates are traced, beginning with the next one that all ranks agree on."""
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=64)] = (0,)


class RetryRequest(Strict):
    """The body of `POST /v1/jobs/{id}/retry`."""

    model_config = ConfigDict(json_schema_extra={"example": {"from": "checkpoint"}})

    start: Literal["checkpoint", "scratch"] = Field(default="checkpoint", alias="from")
    """`checkpoint`: the job's last one, or its beginning where it has none; `scratch`: its beginning, and everything
    that it has saved and reported is dropped."""


class ResolveRequest(Strict):
    """The body of `POST /v1/jobs/{id}/resolve`: what an operator has found out about the job."""

    action: Literal["adopt", "resubmit", "give_up"]
    """`adopt`: the scheduler has it under `scheduler_id`; `resubmit` and `give_up`: nothing of it runs any more."""
    scheduler_id: Annotated[str, Field(pattern=SLURM_ID)] | None = None

    @model_validator(mode="after")
    def _id_goes_with_adopt(self) -> Self:
        if (self.action == "adopt") != (self.scheduler_id is not None):
            raise ValueError("`scheduler_id` goes with the action `adopt`, and with no other")
        return self


class EventResource(Resource):
    """Something that happened to a job."""

    object: Literal["event"] = "event"
    id: str
    job_id: str
    type: str
    level: Literal["info", "warning", "error"]
    message: str
    data: dict[str, Any] = Field(default_factory=dict)
    created_at: Timestamp


class CheckpointResource(Resource):
    """A complete checkpoint of a job."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "checkpoint",
                "id": "ckpt_01kdvdna00yhj80arqj5k8gms6",
                "job_id": "job_01kdvdna00az9cxjnszk8v8abh",
                "step": 200,
                "size_bytes": 481000,
                "digest": "sha256:" + "0" * 64,
                "world_size": 2,
                "execution": 1,
                "metrics": {"eval/loss": 0.25},
                "path": "/shared/runs/job_01kdvdna00az9cxjnszk8v8abh/checkpoints/step-0000000200",
                "created_at": "2026-01-01T12:00:00.000Z",
                "latest": True,
                "best": False,
            }
        }
    )

    object: Literal["checkpoint"] = "checkpoint"
    id: str
    job_id: str
    step: int
    size_bytes: int
    digest: str
    world_size: int
    execution: int
    metrics: dict[str, AnyFloat] = Field(default_factory=dict)
    path: str
    created_at: Timestamp
    latest: bool = False
    """The newest: what the job would go on from."""
    best: bool = False
    """By the spec's `checkpoint.keep_best`, else by `eval/loss`."""


class FileResource(Resource):
    """A file of a checkpoint or an export."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "file",
                "path": "model.safetensors",
                "size_bytes": 481000,
                "modified_at": "2026-01-01T12:00:00.000Z",
            }
        }
    )

    object: Literal["file"] = "file"
    path: str
    """Below its folder; what `.../files/{path}` takes."""
    size_bytes: int
    modified_at: Timestamp


class ArtifactResource(Resource):
    """A file that a run left beside its weights."""

    object: Literal["artifact"] = "artifact"
    path: str
    """Below the run's `artifacts` folder; what `/v1/jobs/{id}/artifacts/{path}` takes."""
    size_bytes: int
    modified_at: Timestamp


class ScriptResource(Resource):
    """What was handed to the scheduler."""

    object: Literal["script"] = "script"
    job_id: str
    attempt: int
    script: str


StreamType = Literal["status", "event", "metrics", "checkpoint", "log"]
"""The names of the server-sent events of `/v1/jobs/{id}/stream`; see docs/api.md for the data of each."""


class StatusUpdate(Resource):
    """Data of a `status` event: the job without what does not change."""

    status: JobStatus
    status_reason: StatusReason | None = None
    status_message: str
    progress: JobProgress | None = None


class MetricsUpdate(Resource):
    """Data of a `metrics` event: new points of one execution."""

    execution: int
    resumed_from_step: int
    points: list[Point]
    progress: JobProgress | None = None
    """The job's, as of now."""


class JobStatusUpdate(StatusUpdate):
    """Data of a `status` event of the stream of all jobs."""

    job_id: str
    name: str


class JobMetricsUpdate(Resource):
    """Data of a `metrics` event of the stream of all jobs: a job's newest values, as of now."""

    job_id: str
    name: str
    values: dict[str, AnyFloat]
    progress: JobProgress | None = None


class Reset(Resource):
    """Data of a `reset` event of the stream of all jobs: more was missed than can be told; read the list anew."""


class LogUpdate(Resource):
    """Data of a `log` event: the next bytes of one stream, decoded with replacement."""

    attempt: int
    rank: str
    """`0`, `1`, ... or `launch`."""
    offset: int
    text: str
