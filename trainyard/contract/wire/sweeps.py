"""Sweeps: the request, the resources, and the specs of the members. Pure functions."""

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trainyard.contract.base import (
    EXAMPLE_JOB,
    SPEC_FORMAT,
    AnyFloat,
    DisplayName,
    Resource,
    Strict,
    Timestamp,
    example,
    reject_bool,
)
from trainyard.contract.bounds import PlainData, PlainMapping
from trainyard.contract.spec.templates import set_path
from trainyard.contract.wire.jobs import JobProgress, JobStatus
from trainyard.contract.wire.search import CLOSED, FieldPath, Search, reject_duplicates, reject_nested_paths

MAX_AXES = 10
DEFAULT_PARALLEL = 4
"""Default number of members of a search that run at once. With more members, each learns less from the others."""
MAX_CHANGES = 64
"""Changed fields of a member."""

Values = Mapping[str, Any]

Axis = Annotated[list[PlainData], Field(min_length=1, max_length=1000), AfterValidator(reject_duplicates)]
Member = Annotated[
    dict[FieldPath, PlainData],
    Field(min_length=1, max_length=MAX_CHANGES, json_schema_extra=CLOSED),
    AfterValidator(reject_nested_paths),
]


class SweepRequest(Strict):
    """The body of `POST /v1/sweeps`: a spec, and the changes of each member."""

    model_config = example(grid={"optimizer.lr": [0.001, 0.003], "seed": [0, 1]}, max_parallel=2)

    name: DisplayName | None = Field(default=None, examples=["learning rates"])
    """Display name. Absent: the name of the spec."""
    spec: Annotated[PlainMapping, Field(json_schema_extra={"format": SPEC_FORMAT})]
    """The spec, as for `POST /v1/jobs`."""
    grid: Annotated[dict[FieldPath, Axis], AfterValidator(reject_nested_paths)] = Field(
        default_factory=dict, max_length=MAX_AXES, json_schema_extra=CLOSED
    )
    """The values of each field; every combination is a member."""
    members: list[Member] = Field(default_factory=list, max_length=1000)
    """Instead of a grid: the changed fields of each member."""
    search: Search | None = None
    """Instead of a grid: ranges, from which the values of each member are chosen while the sweep runs."""
    max_parallel: Annotated[int, Field(ge=1, le=10_000), BeforeValidator(reject_bool)] | None = None
    """Maximum number of members in the scheduler at once; the others stay `queued`. Absent: all, or 4 of a search."""

    @model_validator(mode="after")
    def _require_grid_or_members(self) -> Self:
        if bool(self.grid) + bool(self.members) + (self.search is not None) != 1:
            raise ValueError("give one of `grid`, `members` and `search`")
        return self

    @property
    def size(self) -> int:
        """The number of members, at most."""
        if self.search is not None:
            return self.search.trial_limit
        count = 1
        for values in self.grid.values():
            count *= len(values)
        return len(self.members) or count


SweepState = Literal["running", "finished", "cancelled", "failed"]
MemberState = Literal["waiting", "running", "paused", "stopped_early", "completed", "failed", "cancelled", "deleted"]


class SweepResource(Resource):
    """A sweep: its members are ordinary jobs."""

    model_config = example(
        best=EXAMPLE_JOB,
        members=[
            {
                "job_id": EXAMPLE_JOB,
                "rank": 1,
                "state": "running",
                "status": "running",
                "value": 0.25,
                "values": {"optimizer.lr": 0.001},
            }
        ],
        metric="eval/loss",
        mode="min",
    )

    object: Literal["sweep"] = "sweep"
    id: str = Field(examples=["swp_01kdvdna00az9cxjnszk8v8abh"])
    name: str = Field(examples=["learning rates"])
    project: str | None = Field(default=None, examples=["zoo"])
    """The project of its members at the submission."""
    created_by: str
    created_at: Timestamp
    max_parallel: int | None = Field(default=None, examples=[2])
    fields: list[str] = Field(examples=[["optimizer.lr"]])
    """The fields that members change."""
    size: int = Field(examples=[3])
    """Number of submitted members; deleted members are not in `counts`."""
    counts: dict[JobStatus, int] = Field(default_factory=dict, examples=[{"queued": 1, "running": 2}])
    """Number of members by status."""
    algorithm: str = "grid"
    """How values are chosen; `members` if they were listed."""
    state: SweepState = Field(default="finished", examples=["running"])
    """`running` while members are proposed or run, then `finished`. A search may also end as `cancelled` or
    `failed`."""
    message: str = ""
    """Why a search has ended or waits."""


class SweepMember(Resource):
    """One member with its changes and status."""

    job_id: str
    """Empty: its spec was rejected, which `status_message` explains."""
    values: dict[str, Any]
    status: JobStatus | None = None
    """None: the job was deleted."""
    status_message: str = ""
    progress: JobProgress | None = None
    metrics: dict[str, AnyFloat | None] = Field(default_factory=dict)
    loss_metric: str | None = None
    """The key of `metrics` that is the training loss."""
    number: int = 0
    """Its position in the sweep, from 0."""
    state: MemberState = "waiting"
    """`paused`: at a rung, and may continue. `stopped_early`: ended at a rung, since others were better."""
    value: AnyFloat | None = None
    """The last value of the sweep's metric; for a member that was paused at a rung, the value at that rung."""
    rank: int | None = None
    """1 is the best. Members that have trained for more rungs come first. None: failed, or without a value."""
    rungs: dict[str, AnyFloat | None] = Field(default_factory=dict)
    """The value at each rung that the member has reached, by step; for `asha` and `hyperband`."""


class SweepDetail(SweepResource):
    """A sweep with its members, in the order of submission."""

    members: list[SweepMember]
    metric: str = ""
    """The metric that members are ranked by."""
    mode: Literal["min", "max"] = "min"
    best: str | None = None
    """The job with rank 1."""
    search: Search | None = None
    rung_steps: list[int] = Field(default_factory=list)
    """The steps at which `asha` and `hyperband` pause members."""
    gpu_seconds: float = 0.0
    """GPU time of all members so far: allocated GPUs times time."""
    importance: dict[str, float] = Field(default_factory=dict)
    """Each field's share of the difference between good members of a search and the others (PED-ANOVA); empty until
    about ten members have a value."""


def variants(request: SweepRequest) -> list[dict[str, Any]]:
    """Return the changes of each member; in a grid, the last field varies fastest."""
    if request.members:
        return [dict(values) for values in request.members]
    return [dict(zip(request.grid, values, strict=True)) for values in itertools.product(*request.grid.values())]


def member_spec(spec: Values, values: Values) -> dict[str, Any]:
    """Return the spec of a member. Sections without a change are shared with the given spec, not copied."""
    document = dict(spec)
    for path, value in values.items():
        set_path(document, path, value)
    return document


def format_values(values: Values) -> str:
    """Return changes as text, with long values cut off: `optimizer.lr=0.001 seed=1`."""
    return " ".join(f"{path}={value!s:.80}" for path, value in values.items())
