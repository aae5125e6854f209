"""A metrics request's bytes as rows ready to be stored: the quick way, and where that fails the model. Pure."""

from collections.abc import Container
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from service.db.types import to_micros
from service.metrics.values import encode_value
from trainyard.contract.wire.reports import MAX_POINTS, MetricsBatch

Row = tuple[str, int, float | None, int, int]
"""Key, step, value, special, time in microseconds."""

_SAFE_INT = 2**53


class _Point(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str
    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    value: float
    time: str


class _Progress(msgspec.Struct, forbid_unknown_fields=True):
    step: Annotated[int, msgspec.Meta(ge=0, le=_SAFE_INT)]
    total_steps: Annotated[int, msgspec.Meta(ge=0, le=_SAFE_INT)]
    epoch: Annotated[int, msgspec.Meta(ge=0, le=_SAFE_INT)] = 0
    seconds_per_step: float | None = None


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    execution: Annotated[int, msgspec.Meta(ge=1, le=_SAFE_INT)]
    resumed_from_step: Annotated[int, msgspec.Meta(ge=0, le=_SAFE_INT)]
    points: Annotated[list[_Point], msgspec.Meta(max_length=MAX_POINTS)] = msgspec.field(default_factory=list)
    progress: _Progress | None = None


_decoder = msgspec.json.Decoder(_Batch)
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


@dataclass(frozen=True, slots=True)
class PointBatch:
    """What one request brings. All of it is stored, or none."""

    execution: int
    resumed_from_step: int
    rows: list[Row] = field(default_factory=list)
    progress: dict[str, Any] | None = None


def decode(body: bytes, known_keys: Container[str]) -> PointBatch:
    """The batch in a request's body.

    Args:
        known_keys: Names that were found valid before; a batch with another one is checked by the model.

    Raises:
        RequestValidationError: what is wrong, with the index of the point in its place.
    """
    try:
        found = _decoder.decode(body)
        # What is reported together has one time.
        micros = {time: to_micros(msgspec.convert(time, _Time)) for time in {point.time for point in found.points}}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return of_model(_by_the_model(body))
    points = found.points
    if not all(key in known_keys for key in {point.key for point in points}):
        return of_model(_by_the_model(body))
    # No number in JSON is other than finite: that would be a string, and the model's.
    rows: list[Row] = [(point.key, point.step, point.value, 0, micros[point.time]) for point in points]
    progress = None if found.progress is None else msgspec.to_builtins(found.progress)
    return PointBatch(found.execution, found.resumed_from_step, rows, progress)


def of_model(batch: MetricsBatch) -> PointBatch:
    """The same from the model, which the spool is read into.

    Raises:
        RequestValidationError: a time without a zone.
    """
    rows: list[Row] = []
    for index, point in enumerate(batch.points):
        if point.time.tzinfo is None:
            problem = {"loc": ("body", "points", index, "time"), "msg": "must have a time zone", "type": "timezone"}
            raise RequestValidationError([problem])
        rows.append((point.key, point.step, *encode_value(point.value), to_micros(point.time.astimezone(UTC))))
    progress = None if batch.progress is None else batch.progress.model_dump(mode="json")
    return PointBatch(batch.execution, batch.resumed_from_step, rows, progress)


def _by_the_model(body: bytes) -> MetricsBatch:
    try:
        return MetricsBatch.model_validate_json(body)
    except ValidationError as error:
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(found) from None
