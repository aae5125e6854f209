"""Sweeps: the request, the resources, and the specs of the members. Pure functions."""

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.config import JsonDict

from trainyard.contract.base import AnyFloat, DisplayName, Resource, Strict, Timestamp, reject_bool
from trainyard.contract.bounds import PlainData, PlainMapping
from trainyard.contract.spec.templates import set_path
from trainyard.contract.validation_messages import FIELD_PATH_PATTERN
from trainyard.contract.wire.jobs import JobProgress, JobStatus

MAX_AXES = 10
MAX_CHANGES = 64
"""Changed fields of one member."""

FieldPath = Annotated[str, StringConstraints(max_length=200, pattern=FIELD_PATH_PATTERN)]
"""The path of a field of a spec, such as `optimizer.lr`."""

Values = Mapping[str, Any]

_CLOSED: JsonDict = {"additionalProperties": False}


def _reject_duplicate_values(values: list[Any]) -> list[Any]:
    counts = Counter(json.dumps(value, sort_keys=True, default=str) for value in values)
    if duplicate := next((value for value, count in counts.items() if count > 1), None):
        raise ValueError(f"contains {duplicate!s:.80} twice, which would create the same job twice")
    return values


def _reject_nested_paths(changed: dict[str, Any]) -> dict[str, Any]:
    for path in changed:
        if outer := next((other for other in changed if path.startswith(f"{other}.")), None):
            raise ValueError(f"contains `{path}` and `{outer}`, which overlap")
    return changed


Axis = Annotated[list[PlainData], Field(min_length=1, max_length=1000), AfterValidator(_reject_duplicate_values)]
Member = Annotated[
    dict[FieldPath, PlainData],
    Field(min_length=1, max_length=MAX_CHANGES, json_schema_extra=_CLOSED),
    AfterValidator(_reject_nested_paths),
]


class SweepRequest(Strict):
    """The body of `POST /v1/sweeps`: a spec, and the changes of each member."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "learning rates",
                "spec": {
                    "task": "regression",
                    "model": {"source": "builtin", "name": "mlp"},
                    "data": {"source": "builtin", "name": "parity"},
                    "steps": 20,
                },
                "grid": {"optimizer.lr": [0.001, 0.003], "seed": [0, 1]},
                "max_parallel": 2,
            }
        }
    )

    name: DisplayName | None = None
    """Display name. Absent: the name of the spec."""
    spec: PlainMapping
    """The spec, as for `POST /v1/jobs`."""
    grid: Annotated[dict[FieldPath, Axis], AfterValidator(_reject_nested_paths)] = Field(
        default_factory=dict, max_length=MAX_AXES, json_schema_extra=_CLOSED
    )
    """The values of each field; every combination is a member."""
    members: list[Member] = Field(default_factory=list, max_length=1000)
    """Instead of a grid: the changed fields of each member."""
    max_parallel: Annotated[int, Field(ge=1, le=10_000), BeforeValidator(reject_bool)] | None = None
    """Maximum number of members in the scheduler at once; the others stay `queued`. Absent: all."""

    @model_validator(mode="after")
    def _require_grid_or_members(self) -> Self:
        if bool(self.grid) == bool(self.members):
            raise ValueError("give either `grid` or `members`")
        return self

    @property
    def size(self) -> int:
        """The number of members."""
        count = 1
        for values in self.grid.values():
            count *= len(values)
        return len(self.members) or count


class SweepResource(Resource):
    """A sweep: its members are ordinary jobs."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "sweep",
                "id": "swp_01kdvdna00az9cxjnszk8v8abh",
                "name": "learning rates",
                "created_by": "anna",
                "created_at": "2026-01-01T12:00:00.000Z",
                "max_parallel": 2,
                "fields": ["optimizer.lr"],
                "size": 3,
                "counts": {"running": 2, "queued": 1},
                "members": [
                    {"job_id": "job_01kdvdna00az9cxjnszk8v8abh", "values": {"optimizer.lr": 0.001}, "status": "running"}
                ],
            }
        }
    )

    object: Literal["sweep"] = "sweep"
    id: str
    name: str
    created_by: str
    created_at: Timestamp
    max_parallel: int | None = None
    fields: list[str]
    """The fields that members change."""
    size: int
    """Number of submitted members; deleted members are not in `counts`."""
    counts: dict[JobStatus, int] = Field(default_factory=dict)
    """Number of members by status."""


class SweepMember(Resource):
    """One member with its changes and status."""

    job_id: str
    values: dict[str, Any]
    status: JobStatus | None = None
    """None: the job was deleted."""
    status_message: str = ""
    progress: JobProgress | None = None
    metrics: dict[str, AnyFloat | None] = Field(default_factory=dict)
    loss_metric: str | None = None
    """The one of `metrics` that is the training loss."""


class SweepDetail(SweepResource):
    """A sweep with its members, in the order of submission."""

    members: list[SweepMember]


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
