"""All SQL of writing points, as driver statements: this path carries everything that training reports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from service.db.arrays import inside
from service.db.raw import RawTransaction, Statement
from service.metrics.ingest.decoding import PointBatch, Row

_STATEMENT_ROWS = (500, 100, 10, 1)
"""Few sizes, so that SQLite's cache holds every statement. A statement runs without Python's lock; one row at a time
would fight for it."""

_TARGET = (
    "a.id, a.execution, a.max_restarts, a.reported_execution, a.resumed_from_step, j.pk, j.id, j.attempt_id, j.sequence"
)
_OF_JOBS = "FROM attempts a JOIN jobs j ON j.pk = a.job_pk WHERE a.id"
# Of many rows as one, and of one for many: after each step of a statement, too, the thread waits for Python's lock.
_SQLITE_TARGETS = (
    f"SELECT json_group_array(json_array({_TARGET}, j.latest)) {_OF_JOBS} IN (SELECT value FROM json_each(?))"  # noqa: S608
)
_SQLITE_SAVE = (
    "UPDATE jobs SET sequence = json_extract(w.value, '$[1]'), updated_at = ?, latest = json_extract(w.value, '$[2]'),"
    " progress = COALESCE(json_extract(w.value, '$[3]'), progress)"
    " FROM json_each(?) AS w WHERE jobs.pk = json_extract(w.value, '$[0]')"
)
_SQLITE_INSERT = "INSERT INTO points (job_pk, execution, sequence, key_pk, step, value, special, time) VALUES "
_POSTGRES_LOCK = (
    "SELECT pk FROM jobs WHERE pk IN (SELECT job_pk FROM attempts WHERE id = ANY(?)) ORDER BY pk FOR UPDATE"
)
_POSTGRES_TARGETS = f"SELECT {_TARGET}, CAST(j.latest AS TEXT) {_OF_JOBS} = ANY(?)"
_POSTGRES_INSERT = (
    "WITH fresh AS (INSERT INTO points (job_pk, execution, sequence, key_pk, step, value, special, time)"
    " SELECT * FROM unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[],"
    " ?::float8[], ?::smallint[], ?::bigint[])"
    " ON CONFLICT DO NOTHING RETURNING sequence, job_pk)"
    " SELECT job_pk, sequence, count(*) FROM fresh GROUP BY job_pk, sequence"
)
_POSTGRES_SAVE = (
    "UPDATE jobs SET sequence = w.sequence, updated_at = ?, latest = w.latest,"
    " progress = COALESCE(w.progress, jobs.progress)"
    " FROM json_to_recordset(?::json) AS w(pk bigint, sequence bigint, latest jsonb, progress jsonb)"
    " WHERE jobs.pk = w.pk"
)


@dataclass(slots=True)
class JobState:
    """A locked job; what a group changes of it is written once."""

    pk: int
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


@dataclass(frozen=True, slots=True)
class Reported:
    """Who reports for an attempt."""

    job_pk: int
    execution: int
    resumed_from_step: int


@dataclass
class Known:
    """What one process remembers of what it has committed; only ever true, so that losing it costs time alone."""

    names: dict[str, int] = field(default_factory=dict)
    executions: set[tuple[str, int]] = field(default_factory=set)
    """Attempt and execution."""
    job_keys: dict[str, set[int]] = field(default_factory=dict)
    """By attempt: job numbers can be given again after a deletion."""
    reported: dict[str, Reported] = field(default_factory=dict)
    """By attempt; another process may have moved on."""

    def covers(self, attempt_id: str, batch: PointBatch) -> bool:
        """Whether such a batch was stored before: same execution, no new name."""
        reported, keys = self.reported.get(attempt_id), self.job_keys.get(attempt_id, ())
        return (
            reported is not None
            and (batch.execution, batch.resumed_from_step) == (reported.execution, reported.resumed_from_step)
            and all(self.names.get(name) in keys for name in {row[0] for row in batch.rows})
        )

    def forget(self) -> None:
        self.names.clear()
        self.executions.clear()
        self.job_keys.clear()
        self.reported.clear()


class PointsRepository:
    """Writes within one transaction."""

    def __init__(self, transaction: RawTransaction):
        self._transaction = transaction

    def targets(self, attempt_ids: Sequence[str]) -> dict[str, Target]:
        """The attempts with their jobs, which are locked in one order so that no two writers wait for each other."""
        if self._transaction.is_sqlite:
            (cursor,) = self._transaction.together((_SQLITE_TARGETS, (_text(attempt_ids),)))
            rows: Iterable[Any] = msgspec.json.decode(cursor.fetchone()[0])
        else:
            wanted = (list(attempt_ids),)
            # Two statements, so that the second sees what was committed while the first waited.
            rows = self._transaction.together((_POSTGRES_LOCK, wanted), (_POSTGRES_TARGETS, wanted))[1].fetchall()
        found: dict[str, Target] = {}
        jobs_by_pk: dict[int, JobState] = {}
        for attempt_id, first, restarts, reported, resumed, pk, job_id, current, sequence, latest in rows:
            job = jobs_by_pk.get(pk) or JobState(pk, job_id, current, sequence, msgspec.json.decode(latest))
            jobs_by_pk[pk] = job
            found[attempt_id] = Target(attempt_id, first, restarts, reported, resumed, job)
        return found

    def key_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """The number of each of these names that has one."""
        found: dict[str, int] = {}
        wanted = sorted(names)
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            marks = ",".join("?" * len(some))
            query = f"SELECT name, pk FROM metric_keys WHERE name IN ({marks})"  # noqa: S608
            found.update((name, pk) for name, pk in self._run(query, some))
        return found

    def add_keys(self, names: Iterable[str]) -> None:
        self._many(
            "INSERT INTO metric_keys (name) VALUES (?) ON CONFLICT DO NOTHING", [(name,) for name in sorted(names)]
        )

    def job_keys(self, job_pk: int) -> set[int]:
        return {row[0] for row in self._run("SELECT key_pk FROM job_keys WHERE job_pk = ?", (job_pk,))}

    def add_job_keys(self, job_pk: int, keys: Iterable[int]) -> None:
        rows = [(job_pk, key) for key in sorted(keys)]
        self._many("INSERT INTO job_keys (job_pk, key_pk) VALUES (?, ?) ON CONFLICT DO NOTHING", rows)

    def add_execution(self, target: Target, number: int, resumed: int, now: int) -> None:
        """Note an execution's start; the first word about it stands."""
        self._run(
            "INSERT INTO executions (job_pk, number, attempt_id, resumed_from_step, created_at)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (target.job.pk, number, target.attempt_id, resumed, now),
        )

    def store(self, batches: Sequence[NumberedRows], jobs: Sequence[JobState], now: int) -> list[int]:
        """Store the points that are new, and what the group changed of its jobs; a point that is there stays as it is.
        Comes last: on Postgres the same trip commits.

        Returns:
            How many points were new, of each batch.
        """
        if not jobs:
            return []
        self._transaction.changed_job_pks.update(job.pk for job in jobs)
        if not self._transaction.is_sqlite:
            return self._store_postgres(batches, jobs, now)
        changed = [(job.pk, job.sequence, _text(job.latest), _text(job.progress)) for job in jobs]
        self._run(_SQLITE_SAVE, (now, _text(changed)))
        return [self._add_sqlite(batch) for batch in batches]

    def _add_sqlite(self, batch: NumberedRows) -> int:
        rows, fresh, done = batch.rows, 0, 0
        keys = batch.keys
        for size in _STATEMENT_ROWS:
            while len(rows) - done >= size:
                some = rows[done : done + size]
                done += size
                values: list[Any] = [batch.target.job.pk, batch.execution, batch.sequence]
                for key, step, value, special, time in some:
                    values += (keys[key], step, value, special, time)
                fresh += self._run(_insert_of(size), values).rowcount
        return fresh

    def _store_postgres(self, batches: Sequence[NumberedRows], jobs: Sequence[JobState], now: int) -> list[int]:
        changed = [
            {"pk": job.pk, "sequence": job.sequence, "latest": job.latest, "progress": job.progress} for job in jobs
        ]
        statements: list[Statement] = [(_POSTGRES_SAVE, (now, _text(changed)))]
        columns = [_columns(batch) for batch in batches if batch.rows]
        if columns:
            literals = ["{" + ",".join(column) + "}" for column in zip(*columns, strict=True)]
            statements.append((_POSTGRES_INSERT, literals))
        cursors = self._transaction.together(*statements, last=True)
        counts = {(job, seq): n for job, seq, n in cursors[1].fetchall()} if columns else {}
        return [counts.get((batch.target.job.pk, batch.sequence), 0) for batch in batches]

    def note_execution(self, target: Target) -> None:
        """The highest execution that has reported."""
        self._run(
            "UPDATE attempts SET reported_execution = ?, resumed_from_step = ? WHERE id = ?",
            (target.reported_execution, target.resumed_from_step, target.attempt_id),
        )

    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        return self._transaction.run(statement, values)

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._transaction.many(statement, rows)


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _columns(batch: NumberedRows) -> list[str]:
    """What is inside the array literal of each column."""
    keys, steps, values, specials, times = zip(*batch.rows, strict=True)
    shared = (batch.target.job.pk, batch.execution, batch.sequence)
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
