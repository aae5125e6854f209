"""Decoding of metrics requests into rows. msgspec decodes valid batches; pydantic handles the rest. Pure functions."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from service.core.errors import InvalidRequestError
from service.core.positions import first_position, positions
from service.db.types import to_micros
from service.metrics.values import PointRow, encode_value
from trainyard.contract.base import MAX_SAFE_INT, Timestamp
from trainyard.contract.wire.reports import MAX_POINTS, MAX_RECORD, MAX_SPOOL, MetricsBatch, Phase, SpoolRecords


class _Point(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INT)]
    value: float
    time: str


class _Progress(msgspec.Struct, forbid_unknown_fields=True):
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INT)]
    total_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INT)] | None
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INT)] = 0
    seconds_per_step: float | None = None
    seconds_left: float | None = None
    phase: Phase | None = None
    phase_done: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INT)] | None = None
    phase_total: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INT)] | None = None


class _Source(msgspec.Struct, forbid_unknown_fields=True):
    records: Annotated[
        list[
            tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_RECORD)], Annotated[int, msgspec.Meta(ge=0, le=MAX_POINTS)]]
        ],
        msgspec.Meta(max_length=MAX_POINTS),
    ]
    spool: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPOOL)] = 0


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    execution: Annotated[int, msgspec.Meta(ge=1, le=MAX_SAFE_INT)]
    resumed_from_step: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INT)]
    points: Annotated[list[_Point], msgspec.Meta(max_length=MAX_POINTS)] = msgspec.field(default_factory=list)
    progress: _Progress | None = None
    source: _Source | None = None


_decoder = msgspec.json.Decoder(_Batch)
_time: TypeAdapter[datetime] = TypeAdapter(Timestamp)


@dataclass(frozen=True, slots=True)
class PointBatch:
    """The content of a metrics request. It is stored as a whole or not at all."""

    execution: int
    resumed_from_step: int
    rows: list[PointRow] = field(default_factory=list)
    progress: dict[str, Any] | None = None
    restarts: Sequence[str] = ()
    """Metrics whose earlier points of the same execution and spool are void."""
    position: int | None = None
    """The position of the first point of the batch's last record. A batch with `restarts` has one record."""


def decode_batch(body: bytes, known_keys: Container[str]) -> PointBatch:
    """Return the batch in a request's body.

    Args:
        known_keys: Metric names that were validated before. A batch with any other name is validated by pydantic.

    Raises:
        RequestValidationError: The batch is invalid; the location includes the index of the point.
    """
    return decode_known(body, known_keys) or batch_from_model(_parse_model(body))


def decode_known(body: bytes, known_keys: Container[str]) -> PointBatch | None:
    """Return the batch if it is valid and all its names are known, which takes little time; else None."""
    try:
        decoded = _decoder.decode(body)
        points, source = decoded.points, decoded.source
        numbers = _positions(source, len(points))
        if numbers is None or not all(key in known_keys for key in {point.key for point in points}):
            return None
        # Points that are reported together have the same time.
        micros = {time: to_micros(_time.validate_python(time)) for time in {point.time for point in points}}
    except (msgspec.DecodeError, ValidationError, UnicodeDecodeError, RecursionError):
        return None
    # JSON numbers are finite; non-finite values are strings, which only the pydantic model accepts.
    rows: list[PointRow] = [
        (point.key, point.step, point.value, 0, micros[point.time], position)
        for point, position in zip(points, numbers, strict=True)
    ]
    progress = None if decoded.progress is None else msgspec.to_builtins(decoded.progress)
    return PointBatch(decoded.execution, decoded.resumed_from_step, rows, progress, position=_last_record(source))


def _positions(source: _Source | None, count: int) -> Sequence[int | None] | None:
    """Return the positions of a batch's points, None where a position is not known. The result is None if the records
    do not match the points."""
    if source is None:
        return [None] * count
    records = source.records
    ordered = all(one[0] < following[0] for one, following in pairwise(records))
    return positions(source.spool, records) if ordered and sum(points for _, points in records) == count else None


def batch_from_model(batch: MetricsBatch) -> PointBatch:
    """Return the batch of a parsed model, such as a batch that was read from the spool.

    Raises:
        InvalidRequestError: Curves begin again in a record that is not named.
    """
    source = batch.source
    if batch.restarts and source is None:
        message = "`restarts` needs `source`, which names the record in which the curves begin again"
        raise InvalidRequestError(message, param="source")
    numbers: Sequence[int | None] = [None] * len(batch.points)
    if source is not None:
        numbers = positions(source.spool, source.records)
    rows: list[PointRow] = [
        (point.key, point.step, *encode_value(point.value), to_micros(point.time), position)
        for point, position in zip(batch.points, numbers, strict=True)
    ]
    progress = None if batch.progress is None else batch.progress.model_dump(mode="json")
    position = _last_record(source)
    return PointBatch(batch.execution, batch.resumed_from_step, rows, progress, batch.restarts, position)


def _last_record(source: _Source | SpoolRecords | None) -> int | None:
    """Return the position at which the last record of a batch begins; None if it is not known."""
    return first_position(source.spool, source.records[-1][0]) if source and source.records else None


def _parse_model(body: bytes) -> MetricsBatch:
    try:
        return MetricsBatch.model_validate_json(body)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise RequestValidationError(problems) from None
