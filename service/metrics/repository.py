"""All SQL that reads curves and maintains their buckets. Rows are plain tuples: there are many."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.arrays import array_literal
from service.db.engine import Database
from service.db.models import DownsampleState, Execution, Job, JobKey, MetricKey, Point
from service.metrics.downsampling.buckets import NewPoint, Sample
from service.metrics.downsampling.levels import NO_LEVEL, RangeRead

_RANGES_PER_STATEMENT = 20
"""SQLite allows at most 500 parts in a statement."""

CurveRow = tuple[int, int, float | None, int, int]
"""Step, execution, value, special and time in microseconds."""


class PointRecord(NamedTuple):
    """A stored point as the driver returns it; the time is in microseconds."""

    key_pk: int
    execution: int
    step: int
    value: float | None
    special: int
    time: int


class BucketRange(NamedTuple):
    """Steps `first` to `last`, both included, of a series at a level."""

    key_pk: int
    level: int
    execution: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DownsampleCursor:
    """The position in a job's sequence up to which its points are in the buckets."""

    sequence: int
    spacing_bits: int
    """Distance between the job's points when the first were downsampled, as a power of two of steps."""
    raw_deleted: bool = False
    """Retention has deleted the points."""
    revision: int = 0
    """How often points were deleted."""


class CurveRepository:
    """Curves within a session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database
        self._connection = session.connection()
        self._sqlite = database.dialect == "sqlite"

    def keys(self, job_pk: int, names: Sequence[str] = ()) -> dict[str, int]:
        """Return the primary keys of the job's metrics by name, ordered by name: for all metrics or the named
        metrics."""
        query = sa.select(MetricKey.name, MetricKey.pk).join(JobKey, JobKey.key_pk == MetricKey.pk)
        if names:
            query = query.where(MetricKey.name.in_(names))
        rows = self._session.execute(query.where(JobKey.job_pk == job_pk).order_by(MetricKey.name))
        return {name: pk for name, pk in rows}

    def executions(self, job_pk: int) -> dict[int, int]:
        """Return the step that each execution resumed from."""
        query = sa.select(Execution.number, Execution.resumed_from_step).where(Execution.job_pk == job_pk)
        return {key: value for key, value in self._session.execute(query)}

    def cursor(self, job_pk: int) -> DownsampleCursor | None:
        rows = self._rows(
            "SELECT sequence, spacing_bits, raw_deleted, revision FROM downsample_states WHERE job_pk = ?", (job_pk,)
        )
        return DownsampleCursor(rows[0][0], rows[0][1], bool(rows[0][2]), rows[0][3]) if rows else None

    def step_count(self, job_pk: int, key_pk: int, *, raw: bool) -> int:
        """Return the number of steps between a series' first and last point, both included."""
        # Two subqueries: for one SELECT of both MIN and MAX, SQLite reads every row.
        select = f"SELECT {{}}(step) FROM {_series_table(raw)}"  # noqa: S608 (a table's name)
        both = f"SELECT ({select.format('MIN')}), ({select.format('MAX')})"
        lowest, highest = self._run(both, (job_pk, key_pk) * 2).one()
        return 0 if lowest is None else cast(int, highest) - cast(int, lowest) + 1

    def first_and_last(
        self, job_pk: int, key_pk: int, execution: int, steps: tuple[int, int], *, raw: bool
    ) -> list[tuple[int, int]]:
        """Return (step, time) of the first and last point of an execution within these steps; empty without points."""
        select = (
            f"SELECT step, time FROM {_series_table(raw)}"  # noqa: S608 (a table's name)
            " AND step BETWEEN ? AND ? AND execution = ? ORDER BY step {} LIMIT 1"
        )
        values = (job_pk, key_pk, *steps, execution)
        rows = [self._run(select.format(order), values).fetchone() for order in ("ASC", "DESC")]
        return [(row[0], row[1]) for row in rows if row is not None]

    def has_at_most(self, job_pk: int, key_pk: int, first: int, last: int, count: int) -> bool:
        """Return whether a series has at most `count` points within these steps."""
        query = "SELECT 1 FROM points WHERE job_pk = ? AND key_pk = ? AND step BETWEEN ? AND ? LIMIT ?"
        values = (job_pk, key_pk, first, last, count + 1)
        return cast(int, self._run(f"SELECT COUNT(*) FROM ({query}) AS p", values).scalar()) <= count  # noqa: S608

    def read_ranges(self, job_pk: int, key_pk: int, reads: Sequence[RangeRead]) -> list[CurveRow]:
        """Return the points of these ranges, in no order."""
        rows: list[CurveRow] = []
        for start in range(0, len(reads), _RANGES_PER_STATEMENT):
            selects, values = [], []
            for read in reads[start : start + _RANGES_PER_STATEMENT]:
                selects.append(_select_range(read.level))
                values += [job_pk, key_pk, read.first, read.last, read.execution]
            rows += self._rows(" UNION ALL ".join(selects), values)
        return rows

    def pending_by_key(self, job_pk: int, keys: Collection[int] | None, after: int) -> dict[int, list[CurveRow]]:
        """Return the points that are not in the buckets yet, by metric; of all metrics where `keys` is None."""
        query, values = "SELECT key_pk, step, execution, value, special, time FROM points", [job_pk, after]
        query += " WHERE job_pk = ? AND sequence > ?"
        if keys is not None:
            # The sum keeps the planner off the index by metric, through which it would read all points of a series.
            query += f" AND key_pk + 0 IN ({','.join('?' * len(keys))})"
            values += sorted(keys)
        pending: dict[int, list[CurveRow]] = {}
        for key_pk, step, execution, value, special, time in self._rows(query, values):
            pending.setdefault(key_pk, []).append((step, execution, value, special, time))
        return pending

    def pending_points(self, job_pk: int, after: int, limit: int) -> list[NewPoint]:
        """Return the next points in order of arrival."""
        return self._rows(_SELECT_PENDING, (job_pk, after, limit))

    def samples(self, job_pk: int, ranges: Sequence[BucketRange]) -> dict[tuple[int, int, int], list[Sample]]:
        """Return the samples within these ranges, by key, level and execution."""
        samples: dict[tuple[int, int, int], list[Sample]] = {each[:3]: [] for each in ranges}
        if self._sqlite:
            for each in ranges:
                samples[each[:3]] += [Sample(*row) for row in self._rows(_SELECT_SAMPLES, (job_pk, *each))]
        elif ranges:
            rows = self._rows(_SELECT_SAMPLES_POSTGRES, (*_literals(ranges), job_pk))
            for key_pk, level, execution, step, value, special, time in rows:
                samples[key_pk, level, execution].append(Sample(step, value, special, time))
        return samples

    def points_page(
        self, job_pk: int, keys: Sequence[int], after: tuple[int, int, int], limit: int
    ) -> list[PointRecord]:
        """Return visible points ordered by key, step and execution, which are also the page's cursor.

        If two executions have a point at a step, the later execution's point is visible.
        """
        placeholders = ",".join("?" * len(keys))
        return [
            PointRecord(*row)
            for row in self._run(
                "SELECT key_pk, execution, step, value, special, time FROM points"  # noqa: S608
                f" WHERE job_pk = ? AND key_pk IN ({placeholders}) AND (key_pk, step, execution) > (?, ?, ?)"
                " AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.job_pk = points.job_pk"
                " AND e.number > points.execution AND e.resumed_from_step < points.step)"
                " AND NOT EXISTS (SELECT 1 FROM points p WHERE p.job_pk = points.job_pk AND p.key_pk = points.key_pk"
                " AND p.step = points.step AND p.execution > points.execution)"
                " ORDER BY key_pk, step, execution LIMIT ?",
                (job_pk, *keys, *after, limit),
            ).fetchall()
        ]

    def start_cursor(self, job_pk: int, spacing_bits: int) -> None:
        # The lock orders this after a writer that deletes points and has found no cursor.
        self._session.execute(sa.select(Job.pk).where(Job.pk == job_pk).with_for_update())
        row = {"job_pk": job_pk, "sequence": 0, "spacing_bits": spacing_bits, "raw_deleted": False, "revision": 0}
        self._session.execute(self._database.insert(DownsampleState).values(row).on_conflict_do_nothing())

    def advance_cursor(self, job_pk: int, old: DownsampleCursor, new: int) -> bool:
        """Compare and set; return False if another process was faster, or points were deleted."""
        update = "UPDATE downsample_states SET sequence = ? WHERE job_pk = ? AND sequence = ? AND revision = ?"
        return self._run(update, (new, job_pk, old.sequence, old.revision)).rowcount == 1

    def replace_samples(
        self, job_pk: int, removed: Sequence[tuple[int, ...]], added: Sequence[tuple[Any, ...]]
    ) -> None:
        """Remove (key, level, step, execution) from the job's buckets, and add whole rows."""
        if self._sqlite:
            self._execute_many(_DELETE_SAMPLES, [(job_pk, *row) for row in removed])
            self._execute_many(_INSERT_SAMPLES, [(job_pk, *row) for row in added])
            return
        if removed:
            self._run(_DELETE_SAMPLES_POSTGRES, (*_literals(removed), job_pk))
        if added:
            self._run(_INSERT_SAMPLES_POSTGRES, (job_pk, *_literals(added)))

    def expired_jobs(self, before: datetime, statuses: Collection[str], limit: int) -> list[int]:
        """Return jobs that ended before that time and whose points are not deleted."""
        deleted = sa.exists().where(DownsampleState.job_pk == Job.pk, DownsampleState.raw_deleted)
        has_metrics = sa.exists().where(JobKey.job_pk == Job.pk)
        query = sa.select(Job.pk).where(Job.status.in_(statuses), Job.finished_at < before, has_metrics, ~deleted)
        return list(self._session.scalars(query.order_by(Job.pk).limit(limit)))

    def mark_points_deleted(self, job_pk: int) -> None:
        update = sa.update(DownsampleState).where(DownsampleState.job_pk == job_pk)
        self._session.execute(update.values(raw_deleted=True, revision=DownsampleState.revision + 1))

    def delete_points(self, job_pk: int, up_to: int, batches: int) -> bool:
        """Delete the points of a few numbers of the job's sequence; return False when none is left up to there."""
        lowest = self._run("SELECT MIN(sequence) FROM points WHERE job_pk = ?", (job_pk,)).scalar()
        if lowest is None or lowest > up_to:
            return False
        last = min(up_to, lowest + batches - 1)
        self._run("DELETE FROM points WHERE job_pk = ? AND sequence <= ?", (job_pk, last))
        return True

    def jobs_with_points_to_delete(self, limit: int) -> list[tuple[int, int]]:
        """Return jobs whose points are being deleted, each with the last sequence number to delete."""
        state = DownsampleState
        remaining = sa.exists().where(Point.job_pk == state.job_pk, Point.sequence <= state.sequence)
        query = sa.select(state.job_pk, state.sequence).where(state.raw_deleted, remaining).limit(limit)
        return [(pk, sequence) for pk, sequence in self._session.execute(query)]

    def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return the driver's own tuples. Postgres sends numbers in binary, which takes about half as long."""
        driver: Any = self._connection.connection.driver_connection
        cursor = driver.cursor() if self._sqlite else driver.cursor(binary=True)
        rows: list[Any] = cursor.execute(self._convert(statement), tuple(values)).fetchall()
        return rows

    def _run(self, statement: str, values: Sequence[Any]) -> sa.CursorResult[*tuple[Any, ...]]:
        return self._connection.exec_driver_sql(self._convert(statement), tuple(values))

    def _execute_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            self._connection.exec_driver_sql(statement, rows)

    def _convert(self, statement: str) -> str:
        return statement if self._sqlite else statement.replace("?", "%s")


def _series_table(raw: bool) -> str:
    """Return the table of a series with its condition: the points, or the samples of the lowest level."""
    table, level = ("points", "") if raw else ("downsampled_points", " AND level = 0")
    return f"{table} WHERE job_pk = ? AND key_pk = ?{level}"


def _select_range(level: int) -> str:
    table, condition = ("points", "") if level == NO_LEVEL else ("downsampled_points", f" AND level = {level:d}")
    return (
        f"SELECT step, execution, value, special, time FROM {table} WHERE job_pk = ? AND key_pk = ?{condition}"  # noqa: S608
        " AND step BETWEEN ? AND ? AND execution = ?"
    )


def _literals(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [array_literal(column) for column in zip(*rows, strict=True)]


_SELECT_PENDING = (
    "SELECT key_pk, execution, step, value, special, time, sequence FROM points"
    " WHERE job_pk = ? AND sequence > ? ORDER BY sequence LIMIT ?"
)
_SELECT_SAMPLES = (
    "SELECT step, value, special, time FROM downsampled_points"
    " WHERE job_pk = ? AND key_pk = ? AND level = ? AND execution = ? AND step BETWEEN ? AND ?"
)
_DELETE_SAMPLES = (
    "DELETE FROM downsampled_points WHERE job_pk = ? AND key_pk = ? AND level = ? AND step = ? AND execution = ?"
)
_INSERT_SAMPLES = (
    "INSERT INTO downsampled_points (job_pk, key_pk, level, step, execution, value, special, time)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)

# On Postgres one statement handles all rows, because each statement is a round trip. OFFSET 0 makes the planner look up
# each range in the index.
_SELECT_SAMPLES_POSTGRES = (
    "SELECT w.key_pk, w.level, w.execution, t.* FROM unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::bigint[],"
    " %s::bigint[]) AS w(key_pk, level, execution, first, last) CROSS JOIN LATERAL"
    " (SELECT step, value, special, time FROM downsampled_points WHERE job_pk = %s AND key_pk = w.key_pk"
    " AND level = w.level AND execution = w.execution AND step BETWEEN w.first AND w.last OFFSET 0) AS t"
)
_DELETE_SAMPLES_POSTGRES = (
    "DELETE FROM downsampled_points t USING unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::bigint[])"
    " AS w(key_pk, level, step, execution) WHERE t.job_pk = %s AND t.key_pk = w.key_pk AND t.level = w.level"
    " AND t.step = w.step AND t.execution = w.execution"
)
_INSERT_SAMPLES_POSTGRES = (
    "INSERT INTO downsampled_points (job_pk, key_pk, level, step, execution, value, special, time)"
    " SELECT %s::bigint, w.* FROM unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::bigint[], %s::float8[],"
    " %s::smallint[], %s::bigint[]) AS w ON CONFLICT DO NOTHING"
)
