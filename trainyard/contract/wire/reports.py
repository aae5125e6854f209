"""The reports of a worker to the service, and the reasons for the end of an execution."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

from trainyard.contract.base import (
    EXAMPLE_LATER,
    MAX_SAFE_INT,
    MAX_SPEC_SECRETS,
    AnyFloat,
    Document,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Resource,
    SanitizedText,
    SecretValue,
    Step,
    Timestamp,
    VariableName,
    example,
    reject_bool,
)
from trainyard.contract.node_lists import expand_node_list
from trainyard.contract.stored_name import MAX_STORED_NAME, stored_name
from trainyard.contract.validation_messages import (
    DIGEST_PATTERN,
    EVENT_TYPE_PATTERN,
    NODE_LIST_PATTERN,
    SCHEDULER_ID_PATTERN,
)
from trainyard.contract.wire.worker_events import EventData, check_event_data

MAX_POINTS = 1000
MAX_EVENTS = 100
MAX_LOG_CHUNK = 256 * 1024
"""Bytes of a log append."""

MAX_NODES = 1024
"""Nodes of an attempt that are stored by name."""
MAX_NAME = 1024
"""Characters of a host, an error's type or its hint."""
MAX_CHECKPOINT_METRICS = 1000
MAX_PARAMETERS = 1000
"""Maximum number of parameters, and of tags, of a report and of a job."""
MAX_PARAMETER_TEXT = 2000
MAX_PARAMETER_CHARS = 100_000
"""Characters of all parameters, or of all tags, of a job, names included: every list of jobs reads them."""

ReportedName = Annotated[SanitizedText, StringConstraints(max_length=MAX_NAME)]

# Checked again by the service, as Pythons differ in which new characters they can print.
_STORED = AfterValidator(stored_name)
MetricKey = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STORED_NAME), _STORED]


ExitReason = Literal[
    "completed",
    "paused",
    "error",
    "out_of_memory",
    "disk_full",
    "stalled",
    "rejected",
    "preempted",
    "time_limit",
    "user_cancelled",
    "node_failure",
]
"""How an execution ended, as reported by the worker. After `preempted`, and `time_limit` if the spec permits, the job
continues from a checkpoint. `paused`: the run has reached `pause_at_step` of the launch document. `disk_full`: a
filesystem was full or read-only. `node_failure`: a node was lost; no rank caused the failure."""

UNNAMED_FAILURE = "ScriptFailed"
"""`Failure.type` of a program that failed without an exception, as far as is known."""
DIVERGED = "DivergedError"
"""`Failure.type` of a run that ended because its loss, or its gradients at any loss scale, were not finite."""
PLAIN_FAILURES = frozenset(
    {
        UNNAMED_FAILURE,
        "SystemExit",
        "CodeError",
        "EnvironmentRejected",
        "LaunchFailed",
        "NotStarted",
        "RankFailed",
        DIVERGED,
    }
)
"""Types of failures that are not shown, since the message is a sentence or the program's own text."""
NODE_NOT_READY = "NodeNotReady"
"""`Failure.type` of an attempt whose ranks were not started, because a check of `Failure.node` failed."""
CONTINUE_REASONS: frozenset[str] = frozenset({"preempted", "time_limit"})


class Claim(Document):
    """The claim of node 0 to be the only run of its attempt."""

    model_config = example(scheduler_id="4711")

    nonce: Annotated[SanitizedText, StringConstraints(min_length=8, max_length=64)] = Field(examples=["nonce-0001"])
    """Random value of the claimant, so that its repeated request is granted again and another's is rejected."""
    host: ReportedName = Field(examples=["node1"])
    pid: PositiveInt = Field(examples=[4242])
    scheduler_id: Annotated[str, StringConstraints(pattern=SCHEDULER_ID_PATTERN)] | None = None
    """The scheduler's id of the job in which the claimant runs, if any."""
    nodes: Annotated[str, StringConstraints(pattern=NODE_LIST_PATTERN)] | None = None
    """All nodes of that job, as a Slurm node list: `node[1-2]`. Host names may differ."""

    @property
    def where(self) -> str:
        """The nodes for display, with the host name if it differs."""
        if self.nodes is None or self.nodes == self.host or self.host.startswith(f"{self.nodes}."):
            return self.host
        return f"{self.nodes} ({self.host})"

    @property
    def node_names(self) -> list[str]:
        """The names of all nodes by the scheduler; the list itself if it cannot be read or has very many nodes."""
        if self.nodes is None:
            return [self.host]
        return expand_node_list(self.nodes, MAX_NODES) or [self.nodes]


class ClaimGrant(Document):
    """The claim is granted. A rejected claim is a 409."""

    execution: PositiveInt
    secrets: dict[VariableName, SecretValue] = Field(default_factory=dict, max_length=MAX_SPEC_SECRETS, repr=False)
    """The values of `environment.secrets`, without secrets that the user has deleted."""


class Accepted(Resource):
    """A report was stored."""

    accepted: int
    """Number of its records."""


class AcceptedPoints(Accepted):
    """All points of a batch were stored."""

    model_config = example(accepted=990)

    duplicates: int = Field(examples=[10])
    """Points that were stored before, or that are void, because the program logged a later value of their step."""


class AppendedLog(Resource):
    """A part of a log was stored."""

    next_offset: int
    """The offset of the next part."""


class Heartbeat(Document):
    """A periodic sign of life of a node."""

    execution: PositiveInt
    node: NonNegativeInt = Field(default=0, examples=[0])


class TraceRequest(Document):
    """A requested profiler trace of the next steps."""

    request: PositiveInt
    """Number of the request within the job; it increases."""
    steps: PositiveInt
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=64)]


class HeartbeatReply(Document):
    """The current desired state."""

    stop: Literal["cancel", "pause"] | None = Field(default=None, examples=["pause"])
    profile: TraceRequest | None = Field(default=None, examples=[None])
    """The last trace requested since the attempt started."""
    seconds_left: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Until the time limit ends the attempt, if the scheduler knows; an operator may have raised the limit."""


class Point(Document):
    """The value of a metric at a step."""

    key: MetricKey
    step: Step
    value: AnyFloat
    time: Timestamp


Phase = Literal["training", "evaluating", "saving", "exporting"]
"""The phase of a run after its start."""


class Progress(Document):
    """The progress of a run."""

    step: Step
    """Completed steps."""
    total_steps: Step | None
    """The length of the run; None: the program has not reported it."""
    epoch: NonNegativeInt = 0
    seconds_per_step: AnyFloat | None = None
    """Average over about the last minute, evaluations and waits for checkpoints included."""
    seconds_left: AnyFloat | None = None
    """Expected time to the end of the last step, with the evaluations and checkpoints until then."""
    phase: Phase | None = None
    """The current phase of the run."""
    phase_done: NonNegativeInt | None = None
    """Evaluated examples of `phase_total`."""
    phase_total: NonNegativeInt | None = None

    def step_text(self, separator: str = "/") -> str:
        """Return the step and, if it is known, the length of the run: `39/400`, or `39`."""
        return f"{self.step}{separator}{self.total_steps}" if self.total_steps else str(self.step)


IDLE_GPUS = "idle_gpus"
"""Last part of the name of the metric that counts the GPUs of a node below `IDLE_GPU_PERCENT` for
`IDLE_GPU_SECONDS`."""
IDLE_GPU_PERCENT = 5.0
IDLE_GPU_SECONDS = 300.0

UNKNOWN_STEP = 2**53
"""The step that a writer sends if it does not know the step from which the execution resumed. It hides no point."""


MAX_SPOOL = 2**17 - 1
MAX_RECORD = 2**36 - 1
"""Largest numbers of a spool and of a record in it. Both fit into an integer that every JSON parser reads exactly."""


class SpoolRecords(Document):
    """The records of a spool that contain the points of a batch."""

    model_config = example(records=[[7, 1]])

    spool: Annotated[NonNegativeInt, Field(le=MAX_SPOOL)] = 0
    """0: the spool of the ranks. N + 1: the tracker spool of node N."""
    records: Annotated[
        tuple[
            tuple[Annotated[NonNegativeInt, Field(le=MAX_RECORD)], Annotated[NonNegativeInt, Field(le=MAX_POINTS)]], ...
        ],
        Field(max_length=MAX_POINTS),
    ]
    """The number of each record and the number of its points, in the order of the batch's points. The numbers of the
    records increase."""

    @model_validator(mode="after")
    def _check_order(self) -> "SpoolRecords":
        if any(one[0] >= following[0] for one, following in pairwise(self.records)):
            raise ValueError("the numbers of `records` must increase; name each record once")
        return self

    def count(self) -> int:
        """Return the number of points."""
        return sum(points for _, points in self.records)


class MetricsBatch(Document):
    """Points of an execution; either all are stored or none."""

    model_config = example(points=[{"step": 10}])

    execution: PositiveInt
    resumed_from_step: Step = Field(examples=[0])
    """The step of the checkpoint from which this execution started; 0: none. It hides later points of earlier
    executions. The lowest value of the execution's batches counts."""
    points: Annotated[tuple[Point, ...], Field(max_length=MAX_POINTS), FailFast()] = ()
    progress: Progress | None = Field(default=None, examples=[{"step": 10, "total_steps": 400}])
    source: SpoolRecords | None = Field(default=None, exclude_if=lambda value: value is None)
    """The records that have the points. If a metric has several values at a step of an execution, the value of the
    highest record stays, and within a record the last. Between two spools, and without `source`, the first stays."""
    restarts: Annotated[tuple[MetricKey, ...], Field(max_length=MAX_POINTS)] = Field(
        default=(), examples=[[]], exclude_if=lambda value: not value
    )
    """Metrics whose curves begin again with this batch: their points in earlier records of the execution's spool are
    deleted, and are not stored if they arrive later. Such a batch has the points of a single record."""

    @model_validator(mode="after")
    def _check_source(self) -> "MetricsBatch":
        if self.source is not None and self.source.count() != len(self.points):
            raise ValueError(f"`source` counts {self.source.count()} points; the batch has {len(self.points)}")
        if self.source is not None and self.restarts and len(self.source.records) != 1:
            raise ValueError("a batch with `restarts` has one record in `source`; send other records by themselves")
        return self


EventLevel = Literal["info", "warning", "error"]


class WorkerEvent(Document):
    """An event for the job's history."""

    sequence: NonNegativeInt
    """Position in the execution's spool; (execution, sequence) identifies repeated deliveries."""
    type: Annotated[str, StringConstraints(pattern=EVENT_TYPE_PATTERN)]
    level: EventLevel = "info"
    message: Annotated[SanitizedText, StringConstraints(max_length=4096)]
    data: EventData = Field(default_factory=dict)
    time: Timestamp

    @model_validator(mode="after")
    def _check_data(self) -> "WorkerEvent":
        check_event_data(self.type, self.data)
        return self


class EventsBatch(Document):
    """Events of an execution."""

    model_config = example(events=[{"type": "note", "level": "info"}])

    execution: PositiveInt
    events: Annotated[tuple[WorkerEvent, ...], Field(max_length=MAX_EVENTS), FailFast()]


class CheckpointReport(Document):
    """A complete checkpoint, whose manifest is on disk."""

    model_config = example(metrics={"eval/loss": 0.25})

    execution: PositiveInt
    step: Step
    size_bytes: NonNegativeInt
    digest: Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
    """Digest of the manifest, which contains the digests of the files."""
    world_size: PositiveInt
    metrics: dict[MetricKey, AnyFloat] = Field(default_factory=dict, max_length=MAX_CHECKPOINT_METRICS)
    time: Timestamp
    seconds: Annotated[NonNegativeFloat, Field(le=1e9)] | None = None
    """Time from the start of the save until the manifest was on disk. None: an older worker."""
    removed_steps: Annotated[tuple[Step, ...], Field(max_length=10_000)] = ()
    """Steps of the checkpoints that retention has deleted."""


ParameterName = Annotated[SanitizedText, StringConstraints(min_length=1, max_length=MAX_STORED_NAME), _STORED]
ParameterInt = Annotated[StrictInt, Field(ge=-MAX_SAFE_INT, le=MAX_SAFE_INT)]
"""A larger integer is taken as a float."""
ParameterText = Annotated[SanitizedText, StringConstraints(max_length=MAX_PARAMETER_TEXT)]


class ParametersReport(Document):
    """Parameters, tags and notes that a program gave to its tracker. Later values replace earlier ones."""

    model_config = example(parameters={"optimizer.lr": 0.0003, "model": "resnet"}, tags={"team": "nlp"})

    execution: PositiveInt
    parameters: dict[ParameterName, StrictBool | ParameterInt | AnyFloat | ParameterText | None] = Field(
        default_factory=dict, max_length=MAX_PARAMETERS
    )
    """Values by name; the names of nested values are joined with dots: `optimizer.lr`."""
    tags: dict[ParameterName, ParameterText] = Field(default_factory=dict, max_length=MAX_PARAMETERS)
    notes: ParameterText | None = Field(default=None, examples=["a first try"])
    removed_tags: tuple[ParameterName, ...] = Field(default=(), max_length=MAX_PARAMETERS)
    """Tags that the program deleted, before `tags` are set."""


class Failure(Document):
    """The first error of an execution."""

    rank: NonNegativeInt | None = None
    host: ReportedName | None = None
    type: ReportedName
    message: Annotated[SanitizedText, StringConstraints(max_length=8192)]
    traceback: Annotated[SanitizedText, StringConstraints(max_length=65536)] = ""
    hint: ReportedName | None = None
    """A suggested fix."""
    final: StrictBool = False
    """Whether a retry would fail in the same way."""
    node: ReportedName | None = None
    """The node that caused the error, by its name in the scheduler; the next attempt excludes it."""
    consequence: StrictBool = False
    """Whether another rank, which left no error, caused this error."""

    exit_code: Annotated[int, Field(ge=0, le=255), BeforeValidator(reject_bool)] | None = None
    """Exit code of a user's program; 128 and the number of the signal if a signal ended the rank."""

    @property
    def text(self) -> str:
        """The type and the message, as shown to users."""
        message = self.message.strip()
        return message if self.type in PLAIN_FAILURES else f"{self.type}: {message}"

    @property
    def summary(self) -> str:
        """The rank, and the first line of the text."""
        rank = f"rank {self.rank}: " if self.rank is not None else ""
        return f"{rank}{(self.text.splitlines() or [''])[0]}"


class FinishRecord(Document):
    """The exit record: the file `finish-<execution>.json`, and the body of the finish request."""

    execution: PositiveInt
    reason: ExitReason
    step: Step = Field(default=0, examples=[400])
    """Completed steps."""
    best_step: Step | None = None
    """If the run was stopped early, the step of its best evaluation."""
    failure: Failure | None = None
    restarts: NonNegativeInt = 0
    """In-place restarts of torchrun within the attempt; each used a retry."""
    of_program: StrictBool = False
    """Whether a user's program ran, which alone knows its number of steps."""
    time: Timestamp = Field(examples=[EXAMPLE_LATER])


def end_text(record: FinishRecord | None) -> str:
    """Return a sentence about a run that has completed."""
    if record is not None and record.of_program:
        return "The program ended with exit code 0."
    if record is None or record.best_step is None:
        return "Completed all steps."
    return f"Stopped early at step {record.step}: the evaluations did not improve after step {record.best_step}."


SpoolKind = Literal["metrics", "events", "checkpoint", "parameters", "media"]
