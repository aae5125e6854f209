"""Export of points page by page, and of curves as CSV and JSON, in bounded memory."""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from pydantic import TypeAdapter

from service.core.errors import InvalidRequestError
from service.db.engine import Database
from service.db.types import from_micros
from service.jobs.repository import JobRepository
from service.metrics.queries import CurveQuery, CurveState, read_curves, read_state
from service.metrics.repository import CurveRepository
from service.metrics.values import decode_value
from service.metrics.x_axis import TOKENS, check_token_axis
from trainyard.contract.base import wire_time
from trainyard.contract.wire.curves import AXIS_COLUMNS, ComparisonResource, MetricsResource, PointResource, Series
from trainyard.contract.wire.pages import Page

_ROWS_PER_CHUNK = 1000
_NAMES_PER_STATE = 500
_STATE_SECONDS = 5.0


def point_page(
    database: Database, job_id: str, names: Sequence[str], after: str | None, limit: int, now: datetime
) -> Page[PointResource]:
    """Return the next visible points. A point's id is `<key>.<step>.<execution>`, all numbers.

    Raises:
        InvalidRequestError: `after` is not such an id.
        NotFoundError: There is no such job.
    """
    cursor = _parse_point_id(after)
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
        curves = CurveRepository(session, database)
        keys = curves.keys(job.pk, names)
        selected = {keys[name]: name for name in names or keys if name in keys}
        rows = curves.points_page(job.pk, sorted(selected), cursor, limit + 1) if selected else []
    data = [
        PointResource(
            id=f"{row.key_pk}.{row.step}.{row.execution}",
            key=selected[row.key_pk],
            step=row.step,
            execution=row.execution,
            value=decode_value(row.value, row.special),
            time=from_micros(row.time),
        )
        for row in rows[:limit]
    ]
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return Page(data=data, first_id=ends[0], last_id=ends[1], has_more=len(rows) > limit)


def _parse_point_id(text: str | None) -> tuple[int, int, int]:
    if text is None:
        return -1, -1, -1
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise InvalidRequestError(f"{text!r} is not the id of a point", param="after")
    key, step, execution = (min(int(part), 2**62) for part in parts)
    return key, step, execution


def csv_lines(database: Database, job_id: str, query: CurveQuery, now: datetime) -> Iterator[str]:
    """Return the curves as chunks of CSV text; only one metric is in memory at a time.

    Raises:
        NotFoundError: There is no such job. This and the next error are raised before the first chunk.
        InvalidRequestError: The job does not have the axis.
    """
    with database.read() as session:
        job, repository = JobRepository(session, now).get(job_id), CurveRepository(session, database)
        if query.axis == "tokens":
            reported = bool(repository.keys(job.pk, (TOKENS,)))
            check_token_axis(job.id, job.spec, reported=reported)
        names = list(query.select(repository.keys(job.pk)))
    return _csv_chunks(database, job_id, names, query, now)


def comparison_csv(database: Database, job_ids: Sequence[str], query: CurveQuery, now: datetime) -> Iterator[str]:
    """Return the curves of several jobs as a single CSV text, whose first column is the job. Raises like
    `csv_lines`."""
    return _with_job_column(job_ids, [csv_lines(database, job_id, query, now) for job_id in job_ids])


def _with_job_column(job_ids: Sequence[str], texts: Sequence[Iterator[str]]) -> Iterator[str]:
    headings = [next(text) for text in texts]
    yield f"job,{headings[0]}"
    for job_id, text in zip(job_ids, texts, strict=True):
        for chunk in text:
            yield "".join(f"{job_id},{line}" for line in chunk.splitlines(keepends=True))


def _csv_chunks(
    database: Database, job_id: str, names: Sequence[str], query: CurveQuery, now: datetime
) -> Iterator[str]:
    column = AXIS_COLUMNS.get(query.axis)
    yield "key,step,value,time" + (f",{column}\n" if column else "\n")
    for start in range(0, len(names), _NAMES_PER_STATE):
        group, state, read_at = names[start : start + _NAMES_PER_STATE], None, 0.0
        for name in group:
            # The state is read again for a slow reader: old points may have been deleted since.
            if state is None or time.monotonic() - read_at > _STATE_SECONDS:
                state, read_at = _read_state(database, job_id, group, now), time.monotonic()
            (series,) = read_curves(database, job_id, replace(query, keys=(name,)), now, state).series
            yield from _series_chunks(series)


def _read_state(database: Database, job_id: str, names: Sequence[str], now: datetime) -> CurveState:
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
        return read_state(CurveRepository(session, database), job, names)


def _series_chunks(series: Series) -> Iterator[str]:
    for start in range(0, len(series.steps), _ROWS_PER_CHUNK):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        part = slice(start, start + _ROWS_PER_CHUNK)
        rows = zip(series.steps[part], series.values[part], series.times[part], strict=True)
        for number, (step, value, at) in enumerate(rows, start):
            row = [series.key, step, repr(value), wire_time(at)]
            writer.writerow(row if series.x is None else [*row, f"{series.x[number]:.15g}"])
        yield text.getvalue()


_PART = 1000
"""Elements of a list that are serialized per call."""

_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(cast(Any, field.annotation)) for name, field in Series.model_fields.items()
}


def curves_json(resource: MetricsResource | ComparisonResource) -> Iterator[bytes]:
    """Yield the result of the resource's `model_dump_json`, in parts.

    pydantic serializes a document in one call, during which no other thread runs: 0.3 s for 100,000 points.
    """
    lists = {name: value for name, value in resource if isinstance(value, list)}
    others = resource.model_dump_json(exclude=set(lists)).encode()
    yield others[:-1]
    for name, items in lists.items():
        yield b',"%s":[' % name.encode()
        for number, item in enumerate(items):
            yield b"," if number else b""
            yield from _series_json(item) if isinstance(item, Series) else curves_json(item)
        yield b"]"
    yield b"}"


def _series_json(series: Series) -> Iterator[bytes]:
    separator = b"{"
    for name, value in series:
        yield b'%s"%s":' % (separator, name.encode())
        separator = b","
        if not isinstance(value, list):
            yield _ADAPTERS[name].dump_json(value)
            continue
        yield b"["
        for start in range(0, len(value), _PART):
            yield (b"," if start else b"") + _ADAPTERS[name].dump_json(value[start : start + _PART])[1:-1]
        yield b"]"
    yield b"}"
