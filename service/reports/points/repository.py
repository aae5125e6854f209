"""All SQL of writing points, as driver statements: this path carries everything that training reports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.arrays import inside
from service.db.engine import Database
from service.errors import UnavailableError
from service.reports.points.decoding import Row

if TYPE_CHECKING:
    import psycopg

_STATEMENT_ROWS = (500, 100, 10, 1)
"""Few sizes, so that SQLite's cache holds every statement. A statement runs without Python's lock; one row at a time
would fight for it."""

_SQLITE_INSERT = "INSERT INTO points (job_no, execution, sequence, key_no, step, value, special, time) VALUES "
_POSTGRES_INSERT = (
    "WITH fresh AS (INSERT INTO points (job_no, execution, sequence, key_no, step, value, special, time)"
    " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],"
    " %s::float8[], %s::smallint[], %s::bigint[])"
    " ON CONFLICT DO NOTHING RETURNING sequence, job_no)"
    " SELECT job_no, sequence, count(*) FROM fresh GROUP BY job_no, sequence"
)
_SAVE = "UPDATE jobs SET sequence = ?, updated_at = ?, latest = ?, progress = COALESCE(?, progress) WHERE no = ?"
_POSTGRES_SAVE = (
    "UPDATE jobs SET sequence = w.sequence, updated_at = %s, latest = w.latest,"
    " progress = COALESCE(w.progress, jobs.progress)"
    " FROM json_to_recordset(%s::json) AS w(no bigint, sequence bigint, latest jsonb, progress jsonb)"
    " WHERE jobs.no = w.no"
)


@dataclass(slots=True)
class JobState:
    """A locked job; what a group changes of it is written once."""

    no: int
    id: str
    current_attempt: str | None
    sequence: int
    latest: dict[str, Any]
    progress: dict[str, Any] | None = None
    """New, where it is set."""


@dataclass(slots=True)
class Target:
    """An attempt and its job, as they are now."""

    attempt_id: str
    first_execution: int
    max_restarts: int
    reported_execution: int | None
    resumed_from_step: int | None
    job: JobState


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """One batch's rows with their place in the job's stream, and the numbers of their keys."""

    target: Target
    execution: int
    sequence: int
    rows: Sequence[Row]
    keys: dict[str, int]


@dataclass
class Known:
    """What one process remembers of what it has committed; only ever true, so that losing it costs time alone."""

    names: dict[str, int] = field(default_factory=dict)
    executions: set[tuple[str, int]] = field(default_factory=set)
    """Attempt and execution."""
    job_keys: dict[str, set[int]] = field(default_factory=dict)
    """By attempt: job numbers can be given again after a deletion."""

    def forget(self) -> None:
        self.names.clear()
        self.executions.clear()
        self.job_keys.clear()


class PointsRepository:
    """Writes within one transaction."""

    def __init__(self, session: Session, database: Database):
        self._connection = session.connection()
        self._touched: set[int] = session.info.setdefault("touched", set())
        self._sqlite = database.dialect == "sqlite"

    def targets(self, attempt_ids: Sequence[str]) -> dict[str, Target]:
        """The attempts with their jobs, which are locked in one order so that no two writers wait for each other."""
        marks = ",".join("?" * len(attempt_ids))
        query = (
            "SELECT a.id, a.execution, a.max_restarts, a.reported_execution, a.resumed_from_step,"  # noqa: S608
            " j.no, j.id, j.attempt_id, j.sequence, CAST(j.latest AS TEXT)"
            " FROM attempts a JOIN jobs j ON j.no = a.job_no"
            f" WHERE a.id IN ({marks})"  # question marks alone
        )
        if self._sqlite:
            rows: Iterable[Any] = self._run(query, attempt_ids)
        else:
            jobs = f"SELECT job_no FROM attempts WHERE id IN ({marks})"  # noqa: S608
            lock = f"SELECT no FROM jobs WHERE no IN ({jobs}) ORDER BY no FOR UPDATE"  # noqa: S608
            # Two statements, so that the second sees what was committed while the first waited.
            rows = self._together((lock, attempt_ids), (query, attempt_ids))[1].fetchall()
        found: dict[str, Target] = {}
        jobs_by_no: dict[int, JobState] = {}
        for attempt_id, first, restarts, reported, resumed, no, job_id, current, sequence, latest in rows:
            job = jobs_by_no.get(no) or JobState(no, job_id, current, sequence, msgspec.json.decode(latest))
            jobs_by_no[no] = job
            found[attempt_id] = Target(attempt_id, first, restarts, reported, resumed, job)
        return found

    def key_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """The number of each of these names that has one."""
        found: dict[str, int] = {}
        wanted = sorted(names)
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            marks = ",".join("?" * len(some))
            query = f"SELECT name, no FROM metric_keys WHERE name IN ({marks})"  # noqa: S608
            found.update((name, no) for name, no in self._run(query, some))
        return found

    def add_keys(self, names: Iterable[str]) -> None:
        self._many(
            "INSERT INTO metric_keys (name) VALUES (?) ON CONFLICT DO NOTHING", [(name,) for name in sorted(names)]
        )

    def job_keys(self, job_no: int) -> set[int]:
        return {row[0] for row in self._run("SELECT key_no FROM job_keys WHERE job_no = ?", (job_no,))}

    def add_job_keys(self, job_no: int, keys: Iterable[int]) -> None:
        rows = [(job_no, key) for key in sorted(keys)]
        self._many("INSERT INTO job_keys (job_no, key_no) VALUES (?, ?) ON CONFLICT DO NOTHING", rows)

    def add_execution(self, target: Target, number: int, resumed: int, now: int) -> None:
        """Note an execution's start; the first word about it stands."""
        self._run(
            "INSERT INTO executions (job_no, number, attempt_id, resumed_from_step, created_at)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (target.job.no, number, target.attempt_id, resumed, now),
        )

    def store(self, batches: Sequence[NumberedRows], jobs: Sequence[JobState], now: int) -> list[int]:
        """Store the points that are new, and what the group changed of its jobs; a point that is there stays as it is.

        Returns:
            How many points were new, of each batch.
        """
        self._touched.update(job.no for job in jobs)
        if not self._sqlite:
            return self._store_postgres(batches, jobs, now) if batches else []
        self._many(_SAVE, [(job.sequence, now, _text(job.latest), _text(job.progress), job.no) for job in jobs])
        return [self._add_sqlite(batch) for batch in batches]

    def _add_sqlite(self, batch: NumberedRows) -> int:
        rows, fresh, done = batch.rows, 0, 0
        keys = batch.keys
        for size in _STATEMENT_ROWS:
            while len(rows) - done >= size:
                some = rows[done : done + size]
                done += size
                values: list[Any] = [batch.target.job.no, batch.execution, batch.sequence]
                for key, step, value, special, time in some:
                    values += (keys[key], step, value, special, time)
                fresh += self._connection.exec_driver_sql(_insert_of(size), tuple(values)).rowcount
        return fresh

    def _store_postgres(self, batches: Sequence[NumberedRows], jobs: Sequence[JobState], now: int) -> list[int]:
        changed = [
            {"no": job.no, "sequence": job.sequence, "latest": job.latest, "progress": job.progress} for job in jobs
        ]
        statements: list[tuple[str, Sequence[Any]]] = [(_POSTGRES_SAVE, (now, _text(changed)))]
        columns = [_columns(batch) for batch in batches if batch.rows]
        if columns:
            literals = ["{" + ",".join(column) + "}" for column in zip(*columns, strict=True)]
            statements.append((_POSTGRES_INSERT, literals))
        cursors = self._together(*statements)
        counts = {(job, seq): n for job, seq, n in cursors[1].fetchall()} if columns else {}
        return [counts.get((batch.target.job.no, batch.sequence), 0) for batch in batches]

    def note_execution(self, target: Target) -> None:
        """The highest execution that has reported."""
        self._run(
            "UPDATE attempts SET reported_execution = ?, resumed_from_step = ? WHERE id = ?",
            (target.reported_execution, target.resumed_from_step, target.attempt_id),
        )

    def _run(self, statement: str, values: Sequence[Any]) -> sa.CursorResult[*tuple[Any, ...]]:
        return self._connection.exec_driver_sql(self._spelled(statement), tuple(values))

    def _together(self, *statements: tuple[str, Sequence[Any]]) -> list["psycopg.Cursor[Any]"]:
        """On Postgres: statements in one trip. After each, this thread would wait for Python's lock among requests.

        Raises:
            UnavailableError: the database does not answer.
        """
        import psycopg

        driver = cast("psycopg.Connection[Any]", self._connection.connection.driver_connection)
        try:
            with driver.pipeline():
                return [driver.execute(self._spelled(text), tuple(values)) for text, values in statements]
        except psycopg.OperationalError as error:
            raise UnavailableError(f"the database does not answer: {error}", code="database") from error

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._connection.exec_driver_sql(self._spelled(statement), list(rows))

    def _spelled(self, statement: str) -> str:
        return statement if self._sqlite else statement.replace("?", "%s")


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _columns(batch: NumberedRows) -> list[str]:
    """What is inside the array literal of each column."""
    keys, steps, values, specials, times = zip(*batch.rows, strict=True)
    shared = (batch.target.job.no, batch.execution, batch.sequence)
    numbers = ([batch.keys[key] for key in keys], steps, values, specials, times)
    same = [",".join([str(one)] * len(batch.rows)) for one in shared]
    return same + [inside(column) for column in numbers]


_inserts: dict[int, str] = {}


def _insert_of(size: int) -> str:
    statement = _inserts.get(size)
    if statement is None:
        rows = ",".join(["(?1,?2,?3,?,?,?,?,?)"] * size)
        statement = _inserts[size] = f"{_SQLITE_INSERT}{rows} ON CONFLICT DO NOTHING"
    return statement
