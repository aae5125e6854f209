"""Sweeps: one spec in several variants. What people send, what the service answers, and the variants. Pure."""

import copy
import itertools
import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.config import JsonDict

from trainyard.contract.base import AnyFloat, DisplayName, Resource, Strict, Timestamp, reject_bool
from trainyard.contract.spec.templates import set_path
from trainyard.contract.validation_messages import FIELD_PATH_PATTERN
from trainyard.contract.wire.jobs import JobProgress, JobStatus

MAX_AXES = 10

FieldPath = Annotated[str, StringConstraints(max_length=200, pattern=FIELD_PATH_PATTERN)]
"""Of a field of a spec, such as `optimizer.lr`."""

Values = Mapping[str, Any]

_CLOSED: JsonDict = {"additionalProperties": False}


def _each_once(values: list[Any]) -> list[Any]:
    told = Counter(json.dumps(value, sort_keys=True, default=str) for value in values)
    if again := next((value for value, count in told.items() if count > 1), None):
        raise ValueError(f"has {again} twice, which would make the same job twice")
    return values


def _apart(changed: dict[str, Any]) -> dict[str, Any]:
    for path in changed:
        if outer := next((other for other in changed if path.startswith(f"{other}.")), None):
            raise ValueError(f"has `{path}` and also `{outer}`, of which it is a part: one would undo the other")
    return changed


Axis = Annotated[list[Any], Field(min_length=1, max_length=1000), AfterValidator(_each_once)]
Member = Annotated[dict[FieldPath, Any], Field(min_length=1, json_schema_extra=_CLOSED), AfterValidator(_apart)]


class SweepRequest(Strict):
    """The body of `POST /v1/sweeps`: a spec, and what its members change in it."""

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
    """For people; absent: the spec's name."""
    spec: dict[str, Any]
    """As for `POST /v1/jobs`."""
    grid: Annotated[dict[FieldPath, Axis], AfterValidator(_apart)] = Field(
        default_factory=dict, max_length=MAX_AXES, json_schema_extra=_CLOSED
    )
    """Fields and the values that each takes, each once: every combination is a member."""
    members: list[Member] = Field(default_factory=list, max_length=1000)
    """Instead of a grid: for each member the fields that it changes."""
    max_parallel: Annotated[int, Field(ge=1, le=10_000), BeforeValidator(reject_bool)] | None = None
    """How many of the members the scheduler may have at once; the others wait in `queued`. Absent: all."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.grid) == bool(self.members):
            raise ValueError("give either `grid` or `members`")
        return self

    @property
    def size(self) -> int:
        """How many members it has."""
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
    """Those that its members change."""
    size: int
    """How many members were submitted; one that was deleted since is in no count."""
    counts: dict[JobStatus, int] = Field(default_factory=dict)
    """Members by status."""


class SweepMember(Resource):
    """One member: what it changes and how it does."""

    job_id: str
    values: dict[str, Any]
    status: JobStatus | None = None
    """None: the job was deleted."""
    status_message: str = ""
    progress: JobProgress | None = None
    metrics: dict[str, AnyFloat | None] = Field(default_factory=dict)


class SweepDetail(SweepResource):
    """A sweep with its members, in the order of submission."""

    members: list[SweepMember]


def variants(request: SweepRequest) -> list[dict[str, Any]]:
    """What each member changes; of a grid, the last field changes first."""
    if request.members:
        return [dict(values) for values in request.members]
    return [dict(zip(request.grid, values, strict=True)) for values in itertools.product(*request.grid.values())]


def member_spec(spec: Values, values: Values) -> dict[str, Any]:
    """The spec of a member."""
    document: dict[str, Any] = copy.deepcopy(dict(spec))
    for path, value in values.items():
        set_path(document, path, copy.deepcopy(value))
    return document


def format_values(values: Values) -> str:
    """`optimizer.lr=0.001 seed=1`."""
    return " ".join(f"{path}={value}" for path, value in values.items())
