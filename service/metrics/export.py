"""Points one page after the other, and curves as CSV, so that an answer's size does not matter."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from service.core.errors import InvalidRequestError
from service.db.engine import Database
from service.db.types import from_micros
from service.jobs.repository import JobRepository
from service.metrics.queries import Wanted, read_curves
from service.metrics.repository import CurveRepository
from service.metrics.values import decode_value
from service.metrics.x_axis import tokens_seen
from trainyard.contract.base import wire_time
from trainyard.contract.wire.curves import AXIS_COLUMNS, PointResource, Series
from trainyard.contract.wire.resources import Page


def point_page(
    database: Database, job_id: str, names: Sequence[str], after: str | None, limit: int, now: datetime
) -> Page[PointResource]:
    """The next visible points. Their ids are `<key>.<step>.<execution>` in numbers.

    Raises:
        InvalidRequestError: `after` is no such id.
        NotFoundError: there is no such job.
    """
    place = _place(after)
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
        curves = CurveRepository(session, database)
        numbers = curves.keys(job.pk)
        wanted = {numbers[name]: name for name in names or numbers if name in numbers}
        rows = curves.raw_page(job.pk, sorted(wanted), place, limit + 1) if wanted else []
    data = [
        PointResource(
            id=f"{row.key_pk}.{row.step}.{row.execution}",
            key=wanted[row.key_pk],
            step=row.step,
            execution=row.execution,
            value=decode_value(row.value, row.special),
            time=from_micros(row.time),
        )
        for row in rows[:limit]
    ]
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return Page(data=data, first_id=ends[0], last_id=ends[1], has_more=len(rows) > limit)


def _place(after: str | None) -> tuple[int, int, int]:
    if after is None:
        return -1, -1, -1
    parts = after.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise InvalidRequestError(f"{after!r} is not the id of a point", param="after")
    key, step, execution = (min(int(part), 2**62) for part in parts)
    return key, step, execution


def csv_lines(database: Database, job_id: str, wanted: Wanted, now: datetime) -> Iterator[str]:
    """The curves as text, one metric in memory at a time.

    Raises:
        NotFoundError: there is no such job; told before the first line, as is
        InvalidRequestError: it has no such axis.
    """
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
        if wanted.axis == "tokens":
            tokens_seen(job.id, job.spec, job.latest)
        names = list(wanted.keys or CurveRepository(session, database).keys(job.pk))
    return _csv(database, job_id, names, wanted, now)


def compared_csv(database: Database, job_ids: Sequence[str], wanted: Wanted, now: datetime) -> Iterator[str]:
    """The curves of several jobs as one text, each line with its job before it. Raises what `csv_lines` does."""
    return _joined(job_ids, [csv_lines(database, job_id, wanted, now) for job_id in job_ids])


def _joined(job_ids: Sequence[str], texts: Sequence[Iterator[str]]) -> Iterator[str]:
    headings = [next(text) for text in texts]
    yield f"job,{headings[0]}"
    for job_id, text in zip(job_ids, texts, strict=True):
        for piece in text:
            yield "".join(f"{job_id},{line}" for line in piece.splitlines(keepends=True))


def _csv(database: Database, job_id: str, names: Sequence[str], wanted: Wanted, now: datetime) -> Iterator[str]:
    column = AXIS_COLUMNS.get(wanted.axis)
    yield "key,step,value,time" + (f",{column}\n" if column else "\n")
    for name in names:
        (series,) = read_curves(database, job_id, replace(wanted, keys=(name,)), now).series
        yield from _lines(series)


def _lines(series: Series) -> Iterator[str]:
    for start in range(0, len(series.steps), 1000):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        part = slice(start, start + 1000)
        rows = zip(series.steps[part], series.values[part], series.times[part], strict=True)
        for number, (step, value, time) in enumerate(rows, start):
            row = [series.key, step, repr(value), wire_time(time)]
            writer.writerow(row if series.x is None else [*row, f"{series.x[number]:.15g}"])
        yield text.getvalue()
