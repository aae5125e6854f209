"""What a worker says to the service, and how a run can end."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StringConstraints

from trainyard.contract.base import (
    AnyFloat,
    NonNegativeInt,
    PositiveInt,
    SanitizedData,
    SanitizedText,
    Strict,
    Timestamp,
)
from trainyard.contract.validation_messages import (
    DIGEST_PATTERN,
    EVENT_TYPE_PATTERN,
    NODE_LIST_PATTERN,
    SCHEDULER_ID_PATTERN,
)

MAX_POINTS = 1000
MAX_EVENTS = 100
MAX_LOG_CHUNK = 256 * 1024
"""Bytes of one log append."""

MetricKey = Annotated[str, StringConstraints(min_length=1, max_length=250, pattern=r"^[A-Za-z0-9_.\-/ ]+$")]

ExitReason = Literal[
    "completed",
    "error",
    "out_of_memory",
    "stalled",
    "rejected",
    "preempted",
    "time_limit",
    "user_cancelled",
    "node_failure",
]
"""How an execution ended, as the worker knows it. `preempted`, and `time_limit` where the spec says continue, mean:
a checkpoint is there, continue me. `node_failure`: no rank is to blame, a node vanished."""

CONTINUE_REASONS: frozenset[str] = frozenset({"preempted", "time_limit"})


class Claim(Strict):
    """Node 0's first act: to be the one run of its attempt."""

    nonce: Annotated[SanitizedText, StringConstraints(min_length=8, max_length=64)]
    """Chosen once by the claimant, so that its repeated request is granted again and another's is not."""
    host: SanitizedText
    pid: PositiveInt
    scheduler_id: Annotated[str, StringConstraints(pattern=SCHEDULER_ID_PATTERN)] | None = None
    """The job of the scheduler in which the claimant runs, where it has a number."""
    nodes: Annotated[str, StringConstraints(pattern=NODE_LIST_PATTERN)] | None = None
    """All nodes of that job, as the scheduler writes them: `node[1-2]`. Hosts may have other names."""

    @property
    def where(self) -> str:
        """For people: the scheduler's names, and the host's where it is none of them."""
        if self.nodes is None or self.nodes == self.host or self.host.startswith(f"{self.nodes}."):
            return self.host
        return f"{self.nodes} ({self.host})"


class ClaimGrant(Strict):
    """The claim holds. A refused claim is a 409."""

    execution: PositiveInt


class Heartbeat(Strict):
    """A sign of life; its absence alone proves nothing."""

    execution: PositiveInt
    node: NonNegativeInt = 0


class TraceRequest(Strict):
    """A trace of the next steps that someone asked for."""

    request: PositiveInt
    """Its number within the job; a later one is higher."""
    steps: PositiveInt
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]


class HeartbeatReply(Strict):
    """What the person wants by now."""

    stop: Literal["cancel", "pause"] | None = None
    profile: TraceRequest | None = None
    """The last trace asked for since the attempt began."""


class Point(Strict):
    """One value of one metric after one optimizer step."""

    key: MetricKey
    step: Annotated[NonNegativeInt, Field(le=2**62)]
    value: AnyFloat
    time: Timestamp


class Progress(Strict):
    """How far the run is."""

    step: NonNegativeInt
    """Optimizer steps done."""
    total_steps: NonNegativeInt
    epoch: NonNegativeInt = 0
    seconds_per_step: AnyFloat | None = None
    """Over about the last minute."""


class MetricsBatch(Strict):
    """Points of one execution; all are stored or none."""

    execution: PositiveInt
    resumed_from_step: NonNegativeInt
    """The step whose checkpoint this execution started from, 0 for a fresh start; hides earlier ones' later points."""
    points: Annotated[tuple[Point, ...], Field(max_length=MAX_POINTS)] = ()
    progress: Progress | None = None


class WorkerEvent(Strict):
    """Something worth a line in the job's history."""

    sequence: NonNegativeInt
    """Place in the execution's spool; the pair (execution, sequence) makes a repeated delivery harmless."""
    type: Annotated[str, StringConstraints(pattern=EVENT_TYPE_PATTERN)]
    level: Literal["info", "warning", "error"] = "info"
    message: Annotated[SanitizedText, StringConstraints(max_length=4096)]
    data: SanitizedData = Field(default_factory=dict)
    time: Timestamp


class EventsBatch(Strict):
    """Events of one execution."""

    execution: PositiveInt
    events: Annotated[tuple[WorkerEvent, ...], Field(max_length=MAX_EVENTS)]


class CheckpointReport(Strict):
    """A complete checkpoint: its manifest is on disk."""

    execution: PositiveInt
    step: NonNegativeInt
    size_bytes: NonNegativeInt
    digest: Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
    """Of the manifest, which holds those of the files."""
    world_size: PositiveInt
    metrics: dict[MetricKey, AnyFloat] = Field(default_factory=dict, json_schema_extra={"additionalProperties": False})
    time: Timestamp
    removed_steps: tuple[NonNegativeInt, ...] = ()
    """Checkpoints that retention has deleted since."""


class Failure(Strict):
    """The first thing that went wrong, on the rank where it went wrong first."""

    rank: NonNegativeInt | None = None
    host: SanitizedText | None = None
    type: SanitizedText
    message: Annotated[SanitizedText, StringConstraints(max_length=8192)]
    traceback: Annotated[SanitizedText, StringConstraints(max_length=65536)] = ""
    hint: SanitizedText | None = None
    """What to try."""
    final: StrictBool = False
    """Trying again would end the same way."""
    node: SanitizedText | None = None
    """The node to blame, by the scheduler's name: the next attempt is kept away from it."""
    consequence: StrictBool = False
    """Its cause lies with a peer that left no word of its own."""


class FinishRecord(Strict):
    """The last word of an execution: the file `finish-<execution>.json`, and the body of the finish request."""

    execution: PositiveInt
    reason: ExitReason
    step: NonNegativeInt = 0
    """Optimizer steps done."""
    failure: Failure | None = None
    restarts: NonNegativeInt = 0
    """In-place restarts of torchrun within the attempt so far: errors of the program that used up retries."""
    time: Timestamp


SpoolKind = Literal["metrics", "events", "checkpoint"]
