"""Jobs: the resources of a job, its attempts and events, and the request bodies that change it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints, model_validator
from pydantic.config import JsonDict

from trainyard.contract.base import (
    EXAMPLE_JOB,
    EXAMPLE_LATER,
    EXAMPLE_TIME,
    AnyFloat,
    NonNegativeInt,
    Resource,
    Strict,
    Timestamp,
    example,
    reject_bool,
)
from trainyard.contract.bounds import MAX_SPEC_VALUES, check_plain_data
from trainyard.contract.validation_messages import FIELD_PATH_PATTERN, SLURM_ID_PATTERN
from trainyard.contract.wire.launch import Origin
from trainyard.contract.wire.reports import Failure, Progress

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
    "stopped_early",
    "cancelled_outside",
    "error",
    "out_of_memory",
    "disk_full",
    "time_limit",
    "node_failure",
    "preempted",
    "stalled",
    "rejected",
    "retries_exhausted",
]

ConditionCode = Literal[
    "maintenance",
    "gpu_quota",
    "after",
    "after_failed",
    "after_deleted",
    "sweep_limit",
    "scheduler_unreachable",
    "refusals",
    "refused_for_now",
    "not_checked",
    "site_wait",
    "disk_wait",
    "slow_submit",
    "unconfirmed",
    "in_queue",
    "started",
    "worker_unreachable",
    "requeued",
    "suspended",
    "cleaning_up",
    "silent",
    "standing_still",
    "not_in_queue",
    "end_unknown",
    "still_running",
    "pause_in_queue",
    "pausing",
    "pause_timeout",
    "pause_unlisted",
    "cancel_pending",
    "cancelling",
    "cancel_unlisted",
    "unlisted",
    "lost",
    "internal_error",
]

_FieldName = Annotated[str, StringConstraints(max_length=64)]

MAX_SHOWN_METRICS = 64
"""Maximum number of metrics in a resource or stream event."""

TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})

JOB: JsonDict = {
    "object": "job",
    "id": "job_01kdvdna00az9cxjnszk8v8abh",
    "name": "digits-ddp",
    "status": "running",
    "status_reason": None,
    "status_message": "runs on node1, node2",
    "desired": "run",
    "created_by": "anna",
    "created_at": "2026-01-01T12:00:00.000Z",
    "updated_at": "2026-01-01T12:05:00.000Z",
    "started_at": "2026-01-01T12:01:00.000Z",
    "progress": {"step": 120, "total_steps": 400, "seconds_per_step": 0.5, "eta_seconds": 140.0},
    "metrics": {"train/loss": 0.25, "eval/accuracy": 0.91},
    "loss_metric": "train/loss",
    "evaluation_metric": "eval/accuracy",
    "last_checkpoint_step": 100,
    "metadata": {"team": "nlp"},
    "parameters": {"optimizer.lr": 0.0003},
    "spec": {"task": "image_classification", "gpus": 2, "steps": 400},
    "run_directory": "/shared/runs/job_01kdvdna00az9cxjnszk8v8abh",
}


class Frame(Resource):
    """One frame of a traceback."""

    file: str
    """Path of the file; relative to the uploaded code, if it is part of it."""
    line: int
    function: str
    source: str = ""
    """The source line, and below it the marks of the part that failed."""


class SpecChange(Resource):
    """One field in which a changed spec differs from a job's spec."""

    field: str
    """The field's path."""
    before: Any = None
    """The value in the job's spec; null: absent."""
    after: Any = None
    """The value in the changed spec; null: absent."""
    meaning: str = ""
    """The first sentence about the field in the reference of the spec."""


class Fix(Resource):
    """A change of the spec that is likely to help."""

    fields: dict[str, Any]
    """New values by the field's path, as `--set` takes them."""
    note: str = ""
    changes: list[SpecChange] = Field(default_factory=list)
    """All differences from the job's spec, including the start's, as `POST /v1/jobs/{id}/changes` takes them."""


class FailureSummary(Resource):
    """The user's own part of a failure."""

    frame: Frame | None = None
    """The last frame of the traceback that is in the user's code."""
    is_traceback: bool = False
    """Whether `error.traceback` has a traceback; otherwise it is the end of the log."""
    last_lines: list[str] = Field(default_factory=list)
    """The last lines that the failed rank wrote, without tracebacks."""
    fixes: list[Fix] = Field(default_factory=list)
    """Fixes, most promising first."""
    repeats: bool = False
    """Whether a retry without a change would fail in the same way."""


class Advice(Resource):
    """One observation about a running job, and the field that changes it."""

    kind: Literal["idle_gpus", "slow_data"]
    message: str
    """One sentence for the user."""
    field: str
    """Path of the spec's field to change."""
    fix: Fix | None = None
    """The change, if a value is known with which the spec is accepted."""


class JobProgress(Progress):
    """The progress of a job."""

    model_config = ConfigDict(extra="ignore")

    eta_seconds: float | None = None
    """Estimated seconds to the end of the run."""


class JobCondition(Resource):
    """The reason why a job waits, or another unusual condition, within its status."""

    code: str = Field(examples=["silent"])
    """A value of `ConditionCode`, or an unknown code if the service is newer than the client."""
    data: dict[str, str] = Field(default_factory=dict, examples=[{"since": "2026-01-01 12:05:00 UTC"}])
    """Data of the message, such as the time since when, or the scheduler's reason."""


class AttemptResource(Resource):
    """One entry in the scheduler's queue for a job."""

    object: Literal["attempt"] = "attempt"
    id: str
    number: int
    scheduler: str
    scheduler_id: str | None = Field(default=None, examples=["4711"])
    nodes: list[str] = Field(default_factory=list, examples=[["node1"]])
    """The names of its nodes, by the scheduler; of very many nodes, the scheduler's list."""
    created_at: Timestamp
    submitted_at: Timestamp | None = Field(default=None, examples=[EXAMPLE_TIME])
    started_at: Timestamp | None = Field(default=None, examples=[EXAMPLE_LATER])
    ended_at: Timestamp | None = Field(default=None, examples=[EXAMPLE_LATER])
    execution: int | None = Field(default=None, examples=[1])
    """The newest execution that has sent a report."""
    resumed_from_step: int | None = Field(default=None, examples=[0])
    """The lowest step that a report of that execution gives; None if no report knows it."""
    exit_reason: str | None = Field(default=None, examples=["node_failure"])
    scheduler_end: str | None = Field(default=None, examples=["Slurm: NODE_FAIL; node1 is down: Not responding"])
    """The scheduler's own report of the end: its state, by whom the attempt was cancelled, the exit code, and why a
    node is out of service."""
    failure: str | None = None
    """The cause that the worker reported, in one line."""
    failed_node: str | None = Field(default=None, examples=["node1"])
    """The node that caused the end; the next attempts exclude it."""


class JobResource(Resource):
    """A job: its spec, desired state, status and progress."""

    model_config = example(
        metrics={"eval/accuracy": 0.91, "train/loss": 0.25},
        parameters={"optimizer.lr": 0.0003},
        progress={"eta_seconds": 140.0, "seconds_per_step": 0.5, "step": 120, "total_steps": 400},
    )

    object: Literal["job"] = "job"
    id: str = Field(examples=[EXAMPLE_JOB])
    name: str = Field(examples=["digits-ddp"])
    project: str | None = Field(default=None, examples=["digits"])
    """Groups jobs in lists: from the spec, or else the project that the program named to W&B."""
    status: JobStatus = Field(examples=["running"])
    status_reason: StatusReason | None = None
    status_message: str = Field(examples=["runs on node1, node2"])
    """One sentence that explains the status."""
    condition: JobCondition | None = None
    """The status message for programs; None if the job neither waits nor is unusual."""
    desired: Desired
    created_by: str
    created_at: Timestamp
    updated_at: Timestamp = Field(examples=[EXAMPLE_LATER])
    sequence: int = 0
    """Position in the job's stream: `?after=<sequence>` streams only later events."""
    estimated_start: Timestamp | None = None
    """Start time that the scheduler expects for a pending job; None if it reports none."""
    started_at: Timestamp | None = Field(default=None, examples=["2026-01-01T12:01:00.000Z"])
    finished_at: Timestamp | None = None
    progress: JobProgress | None = None
    attempt: AttemptResource | None = None
    """The current attempt."""
    metrics: dict[str, AnyFloat | None] = Field(default_factory=dict)
    """The latest values of at most 64 metrics; `GET /v1/jobs/{id}/metrics` returns all."""
    loss_metric: str | None = Field(default=None, examples=["train/loss"])
    """The key of `metrics` that tables and pages show as the loss: `train/loss`, or the name that the program uses."""
    evaluation_metric: str | None = Field(default=None, examples=["eval/accuracy"])
    """The key of `metrics` that tells best how good the job is: the metric of early stopping or of the best checkpoint,
    or else an accuracy, a score or a loss of its evaluations."""
    metrics_omitted: int = 0
    """Number of the job's metrics that are not in `metrics`."""
    last_checkpoint_step: int | None = Field(default=None, examples=[100])
    origin: Origin | None = None
    """The checkpoint of another job from which this job starts."""
    error: Failure | None = None
    failure_summary: FailureSummary | None = None
    """The user's own part of the error, and fixes; not in lists."""
    advice: list[Advice] = Field(default_factory=list)
    """Changes that would make the running job faster or cheaper; empty in lists."""
    metadata: dict[str, str] = Field(default_factory=dict, examples=[{"team": "nlp"}])
    parameters: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    """Values that the program reported through its tracker, such as the learning rate. Lists of jobs have 64 at most,
    and texts of at most 200 characters."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags that a user or the program gave, each with a text that may be empty; bounded in the same way."""
    notes: str | None = None
    """Notes of a user or the program, in Markdown; bounded in the same way."""
    archived: bool = False
    """Whether lists leave out the job unless archived jobs are requested."""
    spec: dict[str, Any] = Field(examples=[{"gpus": 2, "steps": 400, "task": "image_classification"}])
    """The resolved spec."""
    run_directory: str = Field(examples=["/shared/runs/job_01kdvdna00az9cxjnszk8v8abh"])
    disk_bytes: int | None = None
    """Size of the run directory, as last measured."""
    sweep_id: str | None = None
    """The sweep that the job belongs to."""
    values: dict[str, bool | int | float | str | None] | None = None
    """In a list with `columns`: the value of each column."""


class ProfileRequest(Strict):
    """The body of `POST /v1/jobs/{id}/profile`."""

    model_config = example(ranks=[0])

    steps: Annotated[int, Field(ge=1, le=1000), BeforeValidator(reject_bool)] = Field(default=3, examples=[3])
    """Number of steps to trace, starting at the next step on which all ranks agree."""
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=64)] = (0,)


class ResumeRequest(Strict):
    """The body of `POST /v1/jobs/{id}/resume`."""

    model_config = example()

    resources: Annotated[dict[_FieldName, JsonValue], Field(max_length=32)] = Field(default_factory=dict)
    """Fields of the spec's `resources` to change; null: the default. The new spec is checked like the spec of a new
    job."""


class RetryRequest(ResumeRequest):
    """The body of `POST /v1/jobs/{id}/retry`."""

    model_config = example(**{"from": "checkpoint"})

    start: Literal["checkpoint", "scratch"] = Field(default="checkpoint", alias="from")
    """`checkpoint`: start from the last checkpoint, or from the beginning if there is none. `scratch`: start from the
    beginning and discard all checkpoints and metrics."""


class ProposedChange(Strict):
    """One field to change."""

    field: Annotated[str, StringConstraints(max_length=200, pattern=FIELD_PATH_PATTERN)]
    """The field's path."""
    before: Any = None
    """The value that the job's spec must have; null: absent."""
    after: Any = None
    """The new value; null: absent."""


class ChangesRequest(Strict):
    """The body of `POST /v1/jobs/{id}/changes`."""

    model_config = example(changes=[{"field": "seed", "before": 0, "after": 1}])

    changes: Annotated[tuple[ProposedChange, ...], Field(min_length=1, max_length=64)]
    """The differences of the new job's spec. Its name and the label `forked_from` are set besides."""

    @model_validator(mode="before")
    @classmethod
    def _check_bounds(cls, data: Any) -> Any:
        check_plain_data(data, max_values=MAX_SPEC_VALUES)
        return data


class ResolveRequest(Strict):
    """The body of `POST /v1/jobs/{id}/resolve`: how to settle a lost job or an unconfirmed submission."""

    action: Literal["adopt", "resubmit", "give_up"]
    """`adopt`: the job runs under `scheduler_id`. `resubmit` or `give_up`: the job no longer runs."""
    scheduler_id: Annotated[str, Field(pattern=SLURM_ID_PATTERN)] | None = Field(default=None, examples=["4711"])

    @model_validator(mode="after")
    def _require_id_for_adopt(self) -> Self:
        if (self.action == "adopt") != (self.scheduler_id is not None):
            raise ValueError("`scheduler_id` is required for the action `adopt`, and not allowed otherwise")
        return self


class ResolveLostRequest(Strict):
    """The body of `POST /v1/lost-jobs/resolve`: how to settle all lost jobs."""

    action: Literal["resubmit", "give_up"]


class ResolutionResource(Resource):
    """The outcome for a lost job."""

    object: Literal["resolution"] = "resolution"
    job_id: str
    resolved: bool
    """False: the job has recovered since, or the action does not apply to it."""
    status: JobStatus | None = Field(default=None, examples=["queued"])
    """The job's status afterwards, if it was resolved."""
    message: str = Field(examples=["Queued to be resubmitted, as resolved by anna."])


class EventResource(Resource):
    """An entry in the history of a job."""

    object: Literal["event"] = "event"
    id: str = Field(examples=["evt_7"])
    job_id: str
    type: str = Field(examples=["status"])
    level: Literal["info", "warning", "error"]
    message: str = Field(examples=["runs on node1"])
    data: dict[str, Any] = Field(default_factory=dict, examples=[{"status": "running"}])
    created_at: Timestamp


class ScriptResource(Resource):
    """The batch script that was submitted for an attempt."""

    object: Literal["script"] = "script"
    job_id: str
    attempt: int
    script: str = Field(examples=["#!/bin/bash\n#SBATCH --nodes=1\n"])
