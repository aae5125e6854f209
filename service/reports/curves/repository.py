"""All SQL of reading curves and of keeping them thinned, without an object a row."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Execution, Job, JobKey, MetricKey, Point, Thinning
from service.reports.curves.buckets import Kept
from service.reports.curves.cover import RAW, Piece


class RawPoint(NamedTuple):
    """A stored point as the driver gives it; the time is in microseconds."""

    key_no: int
    execution: int
    step: int
    value: float | None
    special: int
    time: int
    sequence: int


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

    def keys(self, job_no: int) -> dict[str, int]:
        """The job's metrics by name."""
        query = sa.select(MetricKey.name, MetricKey.no).join(JobKey, JobKey.key_no == MetricKey.no)
        rows = self._session.execute(query.where(JobKey.job_no == job_no).order_by(MetricKey.name))
        return {name: no for name, no in rows}

    def executions(self, job_no: int) -> dict[int, int]:
        """The step that each execution resumed from."""
        query = sa.select(Execution.number, Execution.resumed_from_step).where(Execution.job_no == job_no)
        return {key: value for key, value in self._session.execute(query)}

    def mark(self, job_no: int) -> Mark | None:
        query = sa.select(Thinning.sequence, Thinning.shift, Thinning.raw_deleted).where(Thinning.job_no == job_no)
        row = self._session.execute(query).first()
        return None if row is None else Mark(*row)

    def span(self, job_no: int, key_no: int, *, raw: bool) -> int:
        """Steps between a series' first and last point."""
        # Two questions: for one with both MIN and MAX, SQLite reads every row.
        table = "points" if raw else "thinned_points"
        ask = f"SELECT {{}}(step) FROM {table} WHERE job_no = ? AND key_no = ?"  # noqa: S608 (a table's name)
        ask += "" if raw else " AND level = 0"
        lowest, highest = (self._run(ask.format(end), (job_no, key_no)).scalar() for end in ("MIN", "MAX"))
        return 0 if lowest is None else cast(int, highest) - lowest + 1

    def ends(
        self, job_no: int, key_no: int, execution: int, steps: tuple[int, int], *, raw: bool
    ) -> list[tuple[int, int]]:
        """(step, time) of the first and the last point of one execution within these steps; nothing without any."""
        table, level = ("points", "") if raw else ("thinned_points", " AND level = 0")
        ask = (
            f"SELECT step, time FROM {table} WHERE job_no = ? AND key_no = ?{level}"  # noqa: S608 (a table's name)
            " AND step BETWEEN ? AND ? AND execution = ? ORDER BY step {} LIMIT 1"
        )
        rows = [self._run(ask.format(way), (job_no, key_no, *steps, execution)).fetchone() for way in ("ASC", "DESC")]
        return [(row[0], row[1]) for row in rows if row is not None]

    def few(self, job_no: int, key_no: int, first: int, last: int, most: int) -> bool:
        """Whether a series has at most so many points within these steps."""
        query = "SELECT 1 FROM points WHERE job_no = ? AND key_no = ? AND step BETWEEN ? AND ? LIMIT ?"
        count = self._run(f"SELECT COUNT(*) FROM ({query}) AS found", (job_no, key_no, first, last, most + 1)).scalar()  # noqa: S608
        return cast(int, count) <= most

    def piece(self, job_no: int, key_no: int, piece: Piece) -> Sequence[Sequence[Any]]:
        """(step, execution, value, special, time) in order of step."""
        table, level = ("points", "") if piece.level == RAW else ("thinned_points", f" AND level = {piece.level:d}")
        rows = self._run(
            f"SELECT step, execution, value, special, time FROM {table} WHERE job_no = ? AND key_no = ?{level}"  # noqa: S608
            " AND step BETWEEN ? AND ? AND execution = ? ORDER BY step",
            (job_no, key_no, piece.first, piece.last, piece.execution),
        )
        return rows.fetchall()

    def tail(self, job_no: int, keys: Collection[int], after: int) -> list[RawPoint]:
        """Points of these series that are not in the buckets yet."""
        rows = self._run(_RAW + " ORDER BY sequence", (job_no, after)).fetchall()
        return [RawPoint(*row) for row in rows if row[0] in keys]

    def pending(self, job_no: int, after: int, limit: int) -> list[RawPoint]:
        """The next points in order of arrival."""
        return [
            RawPoint(*row) for row in self._run(_RAW + " ORDER BY sequence LIMIT ?", (job_no, after, limit)).fetchall()
        ]

    def kept(self, job_no: int, key_no: int, level: int, execution: int, steps: tuple[int, int]) -> list[Kept]:
        rows = self._run(
            "SELECT step, value, special, time FROM thinned_points WHERE job_no = ? AND key_no = ? AND level = ?"
            " AND step BETWEEN ? AND ? AND execution = ?",
            (job_no, key_no, level, *steps, execution),
        )
        return [Kept(*row) for row in rows.fetchall()]

    def raw_page(self, job_no: int, keys: Sequence[int], after: tuple[int, int, int], limit: int) -> list[RawPoint]:
        """Visible points in order of key, step and execution, which are the cursor."""
        marks = ",".join("?" * len(keys))
        return [
            RawPoint(*row)
            for row in self._run(
                "SELECT key_no, execution, step, value, special, time, sequence FROM points"  # noqa: S608
                f" WHERE job_no = ? AND key_no IN ({marks}) AND (key_no, step, execution) > (?, ?, ?)"
                " AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.job_no = points.job_no"
                " AND e.number > points.execution AND e.resumed_from_step < points.step)"
                " ORDER BY key_no, step, execution LIMIT ?",
                (job_no, *keys, *after, limit),
            ).fetchall()
        ]

    def start_mark(self, job_no: int, shift: int) -> None:
        row = {"job_no": job_no, "sequence": 0, "shift": shift, "raw_deleted": False}
        self._session.execute(self._database.insert(Thinning).values(row).on_conflict_do_nothing())

    def advance(self, job_no: int, old: int, new: int) -> bool:
        """Compare and set; False when another process was faster."""
        move = sa.update(Thinning).where(Thinning.job_no == job_no, Thinning.sequence == old).values(sequence=new)
        return cast(sa.CursorResult[Any], self._session.execute(move)).rowcount == 1

    def replace(self, gone: Iterable[tuple[int, ...]], kept: Iterable[tuple[Any, ...]]) -> None:
        """Take (job, key, level, step, execution) out of the buckets, and put whole rows in."""
        if out := list(gone):
            self._many(
                "DELETE FROM thinned_points WHERE job_no = ? AND key_no = ? AND level = ? AND step = ?"
                " AND execution = ?",
                out,
            )
        if put := list(kept):
            self._many(
                "INSERT INTO thinned_points (job_no, key_no, level, step, execution, value, special, time)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                put,
            )

    def old_jobs(self, before: datetime, statuses: Collection[str], limit: int) -> list[int]:
        """Jobs that ended before that time and still have points of their own."""
        done = sa.exists().where(Thinning.job_no == Job.no, Thinning.raw_deleted)
        has = sa.exists().where(JobKey.job_no == Job.no)
        query = sa.select(Job.no).where(Job.status.in_(statuses), Job.finished_at < before, has, ~done)
        return list(self._session.scalars(query.order_by(Job.no).limit(limit)))

    def forget_raw(self, job_no: int) -> None:
        self._session.execute(sa.update(Thinning).where(Thinning.job_no == job_no).values(raw_deleted=True))

    def delete_raw(self, job_no: int, up_to: int, batches: int) -> bool:
        """Delete the points of a few places of the job's sequence; False when none is left up to there."""
        lowest = self._run("SELECT MIN(sequence) FROM points WHERE job_no = ?", (job_no,)).scalar()
        if lowest is None or lowest > up_to:
            return False
        last = min(up_to, lowest + batches - 1)
        self._run("DELETE FROM points WHERE job_no = ? AND sequence <= ?", (job_no, last))
        return True

    def jobs_with_deleted_raw(self, limit: int) -> list[tuple[int, int]]:
        """Jobs whose points are being deleted, with how far."""
        left = sa.exists().where(Point.job_no == Thinning.job_no, Point.sequence <= Thinning.sequence)
        query = sa.select(Thinning.job_no, Thinning.sequence).where(Thinning.raw_deleted, left).limit(limit)
        return [(no, sequence) for no, sequence in self._session.execute(query)]

    def _run(self, statement: str, values: Sequence[Any]) -> sa.CursorResult[*tuple[Any, ...]]:
        return self._connection.exec_driver_sql(self._spelled(statement), tuple(values))

    def _many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._connection.exec_driver_sql(self._spelled(statement), rows)

    def _spelled(self, statement: str) -> str:
        return statement if self._sqlite else statement.replace("?", "%s")


_RAW = "SELECT key_no, execution, step, value, special, time, sequence FROM points WHERE job_no = ? AND sequence > ?"
