"""All SQL of reading curves and of keeping them thinned, without an object a row."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.arrays import literal
from service.db.engine import Database
from service.db.models import DownsampleState, Execution, Job, JobKey, MetricKey, Point
from service.metrics.downsampling.buckets import Arrival, Kept
from service.metrics.downsampling.levels import RAW, Piece


class RawPoint(NamedTuple):
    """A stored point as the driver gives it; the time is in microseconds."""

    key_pk: int
    execution: int
    step: int
    value: float | None
    special: int
    time: int
    sequence: int


_PIECES_AT_ONCE = 20
"""In one statement; SQLite takes 500 parts."""

CurveRow = tuple[int, int, float | None, int, int]
"""Step, execution, value, special, time in microseconds."""


class Place(NamedTuple):
    """Steps `first` to `last`, both included, of one series at one level."""

    key_pk: int
    level: int
    execution: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a job's points are in the buckets."""

    sequence: int
    shift: int
    raw_deleted: bool = False


class CurveRepository:
    """Curves within one session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database
        self._connection = session.connection()
        self._sqlite = database.dialect == "sqlite"

    def keys(self, job_pk: int) -> dict[str, int]:
        """The job's metrics by name."""
        query = sa.select(MetricKey.name, MetricKey.pk).join(JobKey, JobKey.key_pk == MetricKey.pk)
        rows = self._session.execute(query.where(JobKey.job_pk == job_pk).order_by(MetricKey.name))
        return {name: pk for name, pk in rows}

    def executions(self, job_pk: int) -> dict[int, int]:
        """The step that each execution resumed from."""
        query = sa.select(Execution.number, Execution.resumed_from_step).where(Execution.job_pk == job_pk)
        return {key: value for key, value in self._session.execute(query)}

    def mark(self, job_pk: int) -> Mark | None:
        rows = self._rows("SELECT sequence, shift, raw_deleted FROM downsample_states WHERE job_pk = ?", (job_pk,))
        return Mark(rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None

    def span(self, job_pk: int, key_pk: int, *, raw: bool) -> int:
        """Steps between a series' first and last point."""
        # Two questions in one: for a single SELECT with both MIN and MAX, SQLite reads every row.
        table = "points" if raw else "downsampled_points"
        ask = f"SELECT {{}}(step) FROM {table} WHERE job_pk = ? AND key_pk = ?"  # noqa: S608 (a table's name)
        ask += "" if raw else " AND level = 0"
        both = f"SELECT ({ask.format('MIN')}), ({ask.format('MAX')})"
        lowest, highest = self._run(both, (job_pk, key_pk) * 2).one()
        return 0 if lowest is None else cast(int, highest) - cast(int, lowest) + 1

    def ends(
        self, job_pk: int, key_pk: int, execution: int, steps: tuple[int, int], *, raw: bool
    ) -> list[tuple[int, int]]:
        """(step, time) of the first and the last point of one execution within these steps; nothing without any."""
        table, level = ("points", "") if raw else ("downsampled_points", " AND level = 0")
        ask = (
            f"SELECT step, time FROM {table} WHERE job_pk = ? AND key_pk = ?{level}"  # noqa: S608 (a table's name)
            " AND step BETWEEN ? AND ? AND execution = ? ORDER BY step {} LIMIT 1"
        )
        rows = [self._run(ask.format(way), (job_pk, key_pk, *steps, execution)).fetchone() for way in ("ASC", "DESC")]
        return [(row[0], row[1]) for row in rows if row is not None]

    def few(self, job_pk: int, key_pk: int, first: int, last: int, most: int) -> bool:
        """Whether a series has at most so many points within these steps."""
        query = "SELECT 1 FROM points WHERE job_pk = ? AND key_pk = ? AND step BETWEEN ? AND ? LIMIT ?"
        count = self._run(f"SELECT COUNT(*) FROM ({query}) AS found", (job_pk, key_pk, first, last, most + 1)).scalar()  # noqa: S608
        return cast(int, count) <= most

    def pieces(self, job_pk: int, key_pk: int, pieces: Sequence[Piece]) -> list[CurveRow]:
        """The points of these pieces, in no order."""
        found: list[CurveRow] = []
        for start in range(0, len(pieces), _PIECES_AT_ONCE):
            asked, values = [], []
            for piece in pieces[start : start + _PIECES_AT_ONCE]:
                asked.append(_piece_query(piece.level))
                values += [job_pk, key_pk, piece.first, piece.last, piece.execution]
            found += self._rows(" UNION ALL ".join(asked), values)
        return found

    def tail(self, job_pk: int, keys: Collection[int] | None, after: int) -> dict[int, list[CurveRow]]:
        """Points that are not in the buckets yet, by series; of all series where `keys` is None."""
        query, values = "SELECT key_pk, step, execution, value, special, time FROM points", [job_pk, after]
        query += " WHERE job_pk = ? AND sequence > ?"
        if keys is not None:
            # A sum is in no index: by that of the series, a planner without statistics would read all their points.
            query += f" AND key_pk + 0 IN ({','.join('?' * len(keys))})"
            values += sorted(keys)
        found: dict[int, list[CurveRow]] = {}
        for key_pk, step, execution, value, special, time in self._rows(query, values):
            found.setdefault(key_pk, []).append((step, execution, value, special, time))
        return found

    def pending(self, job_pk: int, after: int, limit: int) -> list[Arrival]:
        """The next points in order of arrival."""
        return self._rows(_RAW + " ORDER BY sequence LIMIT ?", (job_pk, after, limit))

    def kept(self, job_pk: int, places: Sequence[Place]) -> dict[tuple[int, int, int], list[Kept]]:
        """What is kept within these places, by key, level and execution."""
        found: dict[tuple[int, int, int], list[Kept]] = {place[:3]: [] for place in places}
        if self._sqlite:
            for place in places:
                found[place[:3]] += [Kept(*row) for row in self._rows(_KEPT, (job_pk, *place))]
        elif places:
            rows = self._rows(_KEPT_POSTGRES, (*_literals(places), job_pk))
            for key_pk, level, execution, step, value, special, time in rows:
                found[key_pk, level, execution].append(Kept(step, value, special, time))
        return found

    def raw_page(self, job_pk: int, keys: Sequence[int], after: tuple[int, int, int], limit: int) -> list[RawPoint]:
        """Visible points in order of key, step and execution, which are the cursor."""
        marks = ",".join("?" * len(keys))
        return [
            RawPoint(*row)
            for row in self._run(
                "SELECT key_pk, execution, step, value, special, time, sequence FROM points"  # noqa: S608
                f" WHERE job_pk = ? AND key_pk IN ({marks}) AND (key_pk, step, execution) > (?, ?, ?)"
                " AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.job_pk = points.job_pk"
                " AND e.number > points.execution AND e.resumed_from_step < points.step)"
                " ORDER BY key_pk, step, execution LIMIT ?",
                (job_pk, *keys, *after, limit),
            ).fetchall()
        ]

    def start_mark(self, job_pk: int, shift: int) -> None:
        row = {"job_pk": job_pk, "sequence": 0, "shift": shift, "raw_deleted": False}
        self._session.execute(self._database.insert(DownsampleState).values(row).on_conflict_do_nothing())

    def advance(self, job_pk: int, old: int, new: int) -> bool:
        """Compare and set; False when another process was faster."""
        move = "UPDATE downsample_states SET sequence = ? WHERE job_pk = ? AND sequence = ?"
        return self._run(move, (new, job_pk, old)).rowcount == 1

    def replace(self, job_pk: int, gone: Sequence[tuple[int, ...]], kept: Sequence[tuple[Any, ...]]) -> None:
        """Take (key, level, step, execution) out of the job's buckets, and put whole rows in."""
        if self._sqlite:
            self._many(_TAKE_OUT, [(job_pk, *row) for row in gone])
            self._many(_PUT_IN, [(job_pk, *row) for row in kept])
            return
        if gone:
            self._run(_TAKE_OUT_POSTGRES, (*_literals(gone), job_pk))
        if kept:
            self._run(_PUT_IN_POSTGRES, (job_pk, *_literals(kept)))

    def old_jobs(self, before: datetime, statuses: Collection[str], limit: int) -> list[int]:
        """Jobs that ended before that time and still have points of their own."""
        done = sa.exists().where(DownsampleState.job_pk == Job.pk, DownsampleState.raw_deleted)
        has = sa.exists().where(JobKey.job_pk == Job.pk)
        query = sa.select(Job.pk).where(Job.status.in_(statuses), Job.finished_at < before, has, ~done)
        return list(self._session.scalars(query.order_by(Job.pk).limit(limit)))

    def forget_raw(self, job_pk: int) -> None:
        self._session.execute(
            sa.update(DownsampleState).where(DownsampleState.job_pk == job_pk).values(raw_deleted=True)
        )

    def delete_raw(self, job_pk: int, up_to: int, batches: int) -> bool:
        """Delete the points of a few places of the job's sequence; False when none is left up to there."""
        lowest = self._run("SELECT MIN(sequence) FROM points WHERE job_pk = ?", (job_pk,)).scalar()
        if lowest is None or lowest > up_to:
            return False
        last = min(up_to, lowest + batches - 1)
        self._run("DELETE FROM points WHERE job_pk = ? AND sequence <= ?", (job_pk, last))
        return True

    def jobs_with_deleted_raw(self, limit: int) -> list[tuple[int, int]]:
        """Jobs whose points are being deleted, with how far."""
        left = sa.exists().where(Point.job_pk == DownsampleState.job_pk, Point.sequence <= DownsampleState.sequence)
        query = (
            sa.select(DownsampleState.job_pk, DownsampleState.sequence)
            .where(DownsampleState.raw_deleted, left)
            .limit(limit)
        )
        return [(pk, sequence) for pk, sequence in self._session.execute(query)]

    def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """The driver's own tuples. Postgres sends numbers as they are: written out and read again they take it, and
        Python, nearly twice as long."""
        driver: Any = self._connection.connection.driver_connection
        cursor = driver.cursor() if self._sqlite else driver.cursor(binary=True)
        rows: list[Any] = cursor.execute(self._spelled(statement), tuple(values)).fetchall()
        return rows

    def _run(self, statement: str, values: Sequence[Any]) -> sa.CursorResult[*tuple[Any, ...]]:
        return self._connection.exec_driver_sql(self._spelled(statement), tuple(values))

    def _many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            self._connection.exec_driver_sql(statement, rows)

    def _spelled(self, statement: str) -> str:
        return statement if self._sqlite else statement.replace("?", "%s")


def _piece_query(level: int) -> str:
    table, at = ("points", "") if level == RAW else ("downsampled_points", f" AND level = {level:d}")
    return (
        f"SELECT step, execution, value, special, time FROM {table} WHERE job_pk = ? AND key_pk = ?{at}"  # noqa: S608
        " AND step BETWEEN ? AND ? AND execution = ?"
    )


def _literals(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [literal(column) for column in zip(*rows, strict=True)]


_RAW = "SELECT key_pk, execution, step, value, special, time, sequence FROM points WHERE job_pk = ? AND sequence > ?"

_KEPT = (
    "SELECT step, value, special, time FROM downsampled_points"
    " WHERE job_pk = ? AND key_pk = ? AND level = ? AND execution = ? AND step BETWEEN ? AND ?"
)
_TAKE_OUT = (
    "DELETE FROM downsampled_points WHERE job_pk = ? AND key_pk = ? AND level = ? AND step = ? AND execution = ?"
)
_PUT_IN = (
    "INSERT INTO downsampled_points (job_pk, key_pk, level, step, execution, value, special, time)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)

# Postgres is asked once for all: each statement is a trip. OFFSET 0 keeps its planner from anything else than a look
# into the index for each place.
_KEPT_POSTGRES = (
    "SELECT w.key_pk, w.level, w.execution, t.* FROM unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::bigint[],"
    " %s::bigint[]) AS w(key_pk, level, execution, first, last) CROSS JOIN LATERAL"
    " (SELECT step, value, special, time FROM downsampled_points WHERE job_pk = %s AND key_pk = w.key_pk"
    " AND level = w.level AND execution = w.execution AND step BETWEEN w.first AND w.last OFFSET 0) AS t"
)
_TAKE_OUT_POSTGRES = (
    "DELETE FROM downsampled_points t USING unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::bigint[])"
    " AS w(key_pk, level, step, execution) WHERE t.job_pk = %s AND t.key_pk = w.key_pk AND t.level = w.level"
    " AND t.step = w.step AND t.execution = w.execution"
)
_PUT_IN_POSTGRES = (
    "INSERT INTO downsampled_points (job_pk, key_pk, level, step, execution, value, special, time)"
    " SELECT %s::bigint, w.* FROM unnest(%s::bigint[], %s::smallint[], %s::bigint[], %s::bigint[], %s::float8[],"
    " %s::smallint[], %s::bigint[]) AS w ON CONFLICT DO NOTHING"
)
