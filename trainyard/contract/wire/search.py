"""The search of a sweep: the algorithm, the range of each field, and the limits. Pure functions."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.config import JsonDict

from trainyard.contract.base import Float, PositiveFloat, PositiveInt, Strict, reject_bool
from trainyard.contract.bounds import PlainData
from trainyard.contract.spec.field_types import is_text
from trainyard.contract.validation_messages import FIELD_PATH_PATTERN
from trainyard.contract.wire.reports import MetricKey

MAX_PARAMETERS = 20
MAX_CHOICES = 100
MAX_TRIALS = 1000
DEFAULT_TRIALS = 30
MAX_RUNGS = 12
_MAX_INT = 2**31

Algorithm = Literal["random", "grid", "tpe", "asha", "hyperband"]
RUNG_ALGORITHMS: frozenset[str] = frozenset({"asha", "hyperband"})
"""They pause trials at rungs and continue the best trials."""

FieldPath = Annotated[str, StringConstraints(max_length=200, pattern=FIELD_PATH_PATTERN)]
"""The path of a field of a spec, such as `optimizer.lr`."""
CLOSED: JsonDict = {"additionalProperties": False}
BoundedInt = Annotated[int, Field(ge=-_MAX_INT, le=_MAX_INT), BeforeValidator(reject_bool)]


def reject_nested_paths(changed: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError: a path is inside another."""
    for path in changed:
        if outer := next((other for other in changed if path.startswith(f"{other}.")), None):
            raise ValueError(f"contains `{path}` and `{outer}`, which overlap")
    return changed


def reject_duplicates(values: list[Any]) -> list[Any]:
    """Raises ValueError: a value is in the list twice."""
    received: set[str] = set()
    for value in values:
        if (text := json.dumps(value, sort_keys=True, default=str)) in received:
            raise ValueError(f"contains {value!s:.80} twice, which would create the same job twice")
        received.add(text)
    return values


class Condition(Strict):
    """Sets a field only in trials where another searched field has one of certain values."""

    field: FieldPath
    """The other field; its range is a `choice` or `int`."""
    values: Annotated[list[PlainData], Field(min_length=1, max_length=MAX_CHOICES)]


class FloatRange(Strict):
    """Real numbers from `low` to `high`."""

    type: Literal["float"] = "float"
    low: Float
    high: Float
    log: bool = False
    """Draw the logarithm uniformly, as for learning rates."""
    when: Condition | None = None
    """Absent: in every trial."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_bounds(self.low, self.high, log=self.log)
        return self


class IntRange(Strict):
    """Whole numbers from `low` to `high`, both included."""

    type: Literal["int"]
    low: BoundedInt
    high: BoundedInt
    log: bool = False
    when: Condition | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_bounds(self.low, self.high, log=self.log)
        return self


class Choice(Strict):
    """One of some values."""

    type: Literal["choice"]
    values: Annotated[list[PlainData], Field(min_length=1, max_length=MAX_CHOICES), AfterValidator(reject_duplicates)]
    when: Condition | None = None


def _check_bounds(low: float, high: float, *, log: bool) -> None:
    if low >= high:
        raise ValueError(f"`low` ({low:g}) must be smaller than `high` ({high:g})")
    if log and low <= 0:
        raise ValueError(f"`low` ({low:g}) must be above 0 on a logarithmic scale")


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CONDITION = re.compile(r"^(?P<range>.*?)\s+if\s+(?P<field>[^\s=]+)=(?P<values>.*)$", re.DOTALL)
MAX_RANGE_TEXT = 4096
RangeText = Annotated[str, StringConstraints(max_length=MAX_RANGE_TEXT)]
"""A range as text: `parse_range`."""
RANGE_FORMS = "log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, intlog:LOW:HIGH or choice:VALUE,VALUE"


def typed_value(text: str) -> Any:
    """Return the number, boolean or null that a text represents, or the text itself: `1e-2` is a number."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        number = float(text)
        return int(text) if re.fullmatch(r"[-+]?\d{1,15}", text) else number if math.isfinite(number) else text
    return {"true": True, "false": False, "null": None}.get(text, text)


def parse_range(value: Any, *, as_text: bool = False) -> Any:
    """Return a range in text form, such as `log:1e-5:1e-1`, as data; anything else unchanged.

    Args:
        as_text: The field accepts only text, so that the choice `1` is a text.

    Raises:
        ValueError: the text has another form.
    """
    if not isinstance(value, str):
        return value
    if len(value) > MAX_RANGE_TEXT:
        raise ValueError(f"has more than {MAX_RANGE_TEXT} characters")
    if condition := _CONDITION.match(value):
        choices = [typed_value(part) for part in condition["values"].split(",")]
        given = parse_range(condition["range"], as_text=as_text)
        return {**given, "when": {"field": condition["field"], "values": choices}}
    kind, _, rest = value.strip().partition(":")
    if kind == "choice" and rest:
        read = str.strip if as_text else typed_value
        return {"type": "choice", "values": [read(part) for part in rest.split(",")]}
    bounds = rest.split(":")
    if kind not in ("log", "uniform", "int", "intlog") or len(bounds) != 2:
        raise ValueError(f"is no range; use {RANGE_FORMS}, optionally with ` if FIELD=VALUE,VALUE`")
    low, high = (typed_value(bound) for bound in bounds)
    return {"type": "int" if "int" in kind else "float", "low": low, "high": high, "log": "log" in kind}


def _parse_text_fields(space: Any) -> Any:
    """Parse the ranges of fields that accept only text, which their own validators cannot know."""
    if not isinstance(space, dict):
        return space
    textual = {path for path, value in space.items() if isinstance(value, str) and isinstance(path, str)}
    return {
        path: parse_range(value, as_text=True) if path in textual and is_text(path) else value
        for path, value in space.items()
    }


Range = Annotated[
    Annotated[FloatRange | IntRange | Choice, Field(discriminator="type")],
    BeforeValidator(parse_range, json_schema_input_type=RangeText | FloatRange | IntRange | Choice),
]


def _order_conditions(space: dict[str, Any]) -> dict[str, Any]:
    """Return the ranges so that each condition comes after its field. Raises ValueError: no such order exists."""
    ordered: dict[str, Any] = {}
    waiting = dict(space)
    while waiting:
        ready = [path for path, one in waiting.items() if one.when is None or one.when.field in ordered]
        if not ready:
            path, one = next(iter(waiting.items()))
            if one.when.field not in space:
                raise ValueError(f"`{path}` depends on `{one.when.field}`, which is not searched")
            raise ValueError(f"`{path}` and `{one.when.field}` depend on each other")
        ordered |= {path: waiting.pop(path) for path in ready}
    for path, one in ordered.items():
        if one.when is not None:
            _check_condition(path, one.when, ordered[one.when.field])
    return ordered


def _check_condition(path: str, when: Condition, parent: Any) -> None:
    if isinstance(parent, FloatRange):
        raise ValueError(f"`{path}` depends on `{when.field}`, whose range must be a choice or int")
    for value in when.values:
        known = value in parent.values if isinstance(parent, Choice) else _is_inside(value, parent)
        if not known:
            raise ValueError(f"`{path}` depends on {when.field}={value!s:.80}, which its range does not have")


def _is_inside(value: Any, given: IntRange) -> bool:
    return isinstance(value, int) and given.low <= value <= given.high


class Search(Strict):
    """How the trials of a sweep are chosen."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "algorithm": "tpe",
                "space": {
                    "optimizer.lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
                    "batch.size": {"type": "choice", "values": [64, 128]},
                },
                "metric": "eval/loss",
                "mode": "min",
                "max_trials": 30,
            }
        }
    )

    algorithm: Algorithm = "tpe"
    """`random`; `grid`, all combinations; `tpe`, a model of good and bad trials; `asha` and `hyperband`, which train
    many trials for few steps and continue the best."""
    space: Annotated[dict[FieldPath, Range], AfterValidator(reject_nested_paths), AfterValidator(_order_conditions)] = (
        Field(min_length=1, max_length=MAX_PARAMETERS, json_schema_extra=CLOSED)
    )
    """The range of each field, as an object or as text: `log:1e-5:1e-1`, `uniform:0:1`, `int:1:8`, `choice:a,b`."""
    metric: MetricKey | None = None
    """The metric that trials are compared by. Absent: same as `checkpoint.keep_best`, by default `eval/loss`."""
    mode: Literal["min", "max"] | None = None
    """Whether a smaller or a larger value is better. Absent: same as `checkpoint.keep_best`, or else `min`."""
    max_trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), BeforeValidator(reject_bool)] | None = None
    """Number of trials. Absent: 30, or all combinations of a grid."""
    max_gpu_hours: PositiveFloat | None = None
    """GPU time after which no trial starts or continues; running trials finish. Absent: no limit."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), BeforeValidator(reject_bool)] = 0
    """Seed. Trials depend only on it and on earlier results."""
    sampler: Literal["tpe", "random"] = "tpe"
    """For `asha` and `hyperband`: how values are proposed."""
    min_steps: PositiveInt | None = None
    """For `asha` and `hyperband`: steps of the first rung. Absent: a 27th of the steps, with `eta` 3."""
    eta: Annotated[int, Field(ge=2, le=10), BeforeValidator(reject_bool)] = 3
    """For `asha` and `hyperband`: one of `eta` trials of a rung continues, for `eta` times as many steps."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.algorithm == "grid":
            for path, one in self.space.items():
                if isinstance(one, FloatRange):
                    raise ValueError(f"a grid needs values: `{path}` must be a choice or int")
            if grid_size(self.space) > MAX_TRIALS:
                raise ValueError(f"the grid has more than {MAX_TRIALS} combinations")
        if self.algorithm not in RUNG_ALGORITHMS and self.min_steps is not None:
            raise ValueError("`min_steps` applies only to `asha` and `hyperband`")
        return self

    @property
    def trial_limit(self) -> int:
        """The number of trials."""
        if self.algorithm != "grid":
            return self.max_trials or DEFAULT_TRIALS
        size = len(grid_points(self.space))
        return min(self.max_trials or size, size)


def grid_size(space: Mapping[str, Any]) -> int:
    """Return an upper bound of the number of combinations, without listing them."""
    return math.prod(len(_grid_values(one)) for one in space.values())


def grid_points(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations; the last field varies fastest. A field whose condition is not met is absent."""
    points: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(_grid_values(one) for one in space.values())):
        point: dict[str, Any] = {}
        for (path, one), value in zip(space.items(), values, strict=True):
            if is_active(one, point):
                point[path] = value
        points.setdefault(json.dumps(point, sort_keys=True), point)
    return list(points.values())


def _grid_values(given: Any) -> Sequence[Any]:
    return given.values if isinstance(given, Choice) else range(given.low, given.high + 1)


def is_active(given: Any, values: Mapping[str, Any]) -> bool:
    """Return whether a range applies to a trial with these values of the fields before it."""
    when = given.when
    return when is None or (when.field in values and values[when.field] in when.values)


def corner_points(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return points that together have both ends of each range and every choice; each is checked at submission."""
    count = max(len(one.values) if isinstance(one, Choice) else 2 for one in space.values())
    points = []
    for n in range(count):
        point: dict[str, Any] = {}
        for path, one in space.items():
            if is_active(one, point):
                ends = one.values if isinstance(one, Choice) else (one.low, one.high)
                point[path] = ends[n % len(ends)]
        points.append(point)
    return points
