"""All SQL that writes points. It uses the driver directly, because every reported point passes through here."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import msgspec

from service.core.positions import SPOOL_SHIFT
from service.db.arrays import array_elements
from service.db.raw import RawTransaction, Statement
from service.metrics.values import LatestPoint, PointRow

_STATEMENT_ROWS = (500, 100, 10, 1)
"""Rows per INSERT on SQLite. A few fixed sizes keep every statement in SQLite's cache. A statement runs without the
GIL, for which single-row statements would contend."""

_ATTEMPT = (
    "a.id, a.execution, a.max_restarts, a.reported_execution, a.resumed_from_step, a.ended_at,"
    " j.pk, j.id, j.attempt_id, j.sequence"
)
_RESTARTS = "FROM curve_revisions r WHERE r.job_pk = j.pk AND r.restart IS NOT NULL"
_FROM_ATTEMPTS = "FROM attempts a JOIN jobs j ON j.pk = a.job_pk WHERE a.id"
# One row carries all results, and one parameter all values: the thread waits for the GIL after each row, too.
_SQLITE_ATTEMPTS = (
    f"SELECT json_group_array(json_array({_ATTEMPT}, j.latest, j.latest_points,"  # noqa: S608
    f" json((SELECT json_group_array(json_array(r.execution, r.key_pk, r.spool, r.restart)) {_RESTARTS}))))"
    f" {_FROM_ATTEMPTS} IN (SELECT value FROM json_each(?))"
)
_SQLITE_SAVE = (
    "UPDATE jobs SET sequence = json_extract(w.value, '$[1]'), updated_at = ?, latest = json_extract(w.value, '$[2]'),"
    " latest_points = json_extract(w.value, '$[3]'), progress = COALESCE(json_extract(w.value, '$[4]'), progress)"
    " FROM json_each(?) AS w WHERE jobs.pk = json_extract(w.value, '$[0]')"
)
_COLUMNS = "job_pk, execution, sequence, key_pk, step, value, special, time, position"
_SQLITE_INSERT = f"INSERT INTO points AS p ({_COLUMNS}) VALUES "  # noqa: S608
_REPLACE = (
    " ON CONFLICT (job_pk, key_pk, step, execution) DO UPDATE SET sequence = excluded.sequence,"
    " value = excluded.value, special = excluded.special, time = excluded.time, position = excluded.position"
    f" WHERE excluded.position > p.position AND excluded.position >> {SPOOL_SHIFT} = p.position >> {SPOOL_SHIFT}"
)
"""A value that its program logged later replaces the stored one. Two spools have no common order: the first value
stays."""
_COUNT_REPEATS = (
    " ON CONFLICT (job_pk, execution, key_pk, spool) DO UPDATE SET"
    " repeats = curve_revisions.repeats + excluded.repeats, sequence = excluded.sequence"
)
_SQLITE_REPEATS = (
    "INSERT INTO curve_revisions (job_pk, execution, key_pk, spool, repeats, sequence) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
    f"{_COUNT_REPEATS}"
)
_POSTGRES_LOCK = (
    "SELECT pk FROM jobs WHERE pk IN (SELECT job_pk FROM attempts WHERE id = ANY(?)) ORDER BY pk FOR UPDATE"
)
_POSTGRES_ATTEMPTS = (
    f"SELECT {_ATTEMPT}, CAST(j.latest AS TEXT), CAST(j.latest_points AS TEXT),"
    f" (SELECT json_agg(json_build_array(r.execution, r.key_pk, r.spool, r.restart)) {_RESTARTS})"
    f" {_FROM_ATTEMPTS} = ANY(?)"
)
# A row that was inserted has no xmax.
_POSTGRES_INSERT = (
    f"WITH fresh AS (INSERT INTO points AS p ({_COLUMNS})"  # noqa: S608
    " SELECT * FROM unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[],"
    f" ?::float8[], ?::smallint[], ?::bigint[], ?::bigint[]){_REPLACE}"
    " RETURNING p.job_pk, p.execution, p.key_pk, p.sequence, p.position, p.xmax <> 0 AS is_repeat),"
    " repeated AS (INSERT INTO curve_revisions (job_pk, execution, key_pk, spool, repeats, sequence)"
    f" SELECT job_pk, execution, key_pk, position >> {SPOOL_SHIFT}, count(*), max(sequence)"
    f" FROM fresh WHERE is_repeat GROUP BY 1, 2, 3, 4{_COUNT_REPEATS})"
    " SELECT job_pk, sequence, count(*) FROM fresh GROUP BY job_pk, sequence"
)
_POSTGRES_SAVE = (
    "UPDATE jobs SET sequence = w.sequence, updated_at = ?, latest = w.latest, latest_points = w.latest_points,"
    " progress = COALESCE(w.progress, jobs.progress) FROM json_to_recordset(?::json)"
    " AS w(pk bigint, sequence bigint, latest jsonb, latest_points jsonb, progress jsonb)"
    " WHERE jobs.pk = w.pk"
)

_points = msgspec.json.Decoder(dict[str, LatestPoint])


@dataclass(slots=True)
class JobState:
    """A locked job. The changes of a group are written once, at its end."""

    pk: int
    id: str
    current_attempt: str | None
    sequence: int
    latest: dict[str, Any]
    latest_points: dict[str, LatestPoint]
    """The point of each value of `latest`. The name "" has the point of the progress, which has no step."""
    restarts: dict[tuple[int, int, int], int]
    """The first position that is not void, by execution, number of the metric and spool, of curves that began again."""
    progress: dict[str, Any] | None = None
    """New progress; None leaves the stored progress unchanged."""


@dataclass(slots=True)
class AttemptState:
    """An attempt and its locked job."""

    attempt_id: str
    first_execution: int
    max_restarts: int
    reported_execution: int | None
    resumed_from_step: int | None
    ended_at: int | None
    """Time in microseconds."""
    job: JobState


@dataclass(frozen=True, slots=True)
class AcceptedBatch:
    """The rows of a batch with their number in the job's sequence."""

    job: JobState
    execution: int
    sequence: int
    rows: Sequence[PointRow]
    reported: int
    """The number of reported points, including void points."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """The first position that is not void, by metric, of the curves that begin again."""
    is_newest: bool = False
    """Whether the batch is of the newest execution, so that the job's latest values may be among its points."""


@dataclass(frozen=True, slots=True)
class InsertResult:
    """The result of a batch that is in the database."""

    stored: int
    """Points that are new or replace another point."""
    duplicates: int
    job_pk: int
    job_id: str
    sequence: int


class PointsRepository:
    """Writes within a transaction."""

    def __init__(self, transaction: RawTransaction):
        self._transaction = transaction

    def lock_attempts(self, attempt_ids: Sequence[str]) -> dict[str, AttemptState]:
        """Return the attempts by id and lock their jobs, always in the same order to avoid deadlocks."""
        if self._transaction.is_sqlite:
            (cursor,) = self._transaction.execute_pipelined((_SQLITE_ATTEMPTS, (_json(attempt_ids),)))
            rows: Iterable[Any] = msgspec.json.decode(cursor.fetchone()[0])
        else:
            ids = (list(attempt_ids),)
            # Two statements: the second reads the data that was committed while the first waited for the locks.
            rows = self._transaction.execute_pipelined((_POSTGRES_LOCK, ids), (_POSTGRES_ATTEMPTS, ids))[1].fetchall()
        attempts: dict[str, AttemptState] = {}
        jobs: dict[int, JobState] = {}
        for attempt_id, first, restarts, reported, resumed, ended, pk, job_id, current, *state in rows:
            if pk not in jobs:
                jobs[pk] = _job_state(pk, job_id, current, *state)
            attempts[attempt_id] = AttemptState(attempt_id, first, restarts, reported, resumed, ended, jobs[pk])
        return attempts

    def key_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Return the numbers of these metric names, if they have numbers."""
        numbers: dict[str, int] = {}
        ordered = sorted(names)
        for start in range(0, len(ordered), 500):
            chunk = ordered[start : start + 500]
            placeholders = ",".join("?" * len(chunk))
            query = f"SELECT name, pk FROM metric_keys WHERE name IN ({placeholders})"  # noqa: S608
            numbers.update((name, pk) for name, pk in self._transaction.execute(query, chunk))
        return numbers

    def add_keys(self, names: Iterable[str]) -> None:
        self._transaction.execute_many(
            "INSERT INTO metric_keys (name) VALUES (?) ON CONFLICT DO NOTHING", [(name,) for name in sorted(names)]
        )

    def job_keys(self, job_pk: int) -> set[int]:
        return {row[0] for row in self._transaction.execute("SELECT key_pk FROM job_keys WHERE job_pk = ?", (job_pk,))}

    def add_job_keys(self, job_pk: int, keys: Iterable[int]) -> None:
        rows = [(job_pk, key) for key in sorted(keys)]
        self._transaction.execute_many(
            "INSERT INTO job_keys (job_pk, key_pk) VALUES (?, ?) ON CONFLICT DO NOTHING", rows
        )

    def add_execution(self, attempt: AttemptState, number: int, resumed: int, now: int) -> int:
        """Record the start of an execution, or lower its step; return the lowest step that it resumed from."""
        rows = self._transaction.execute(
            "INSERT INTO executions (job_pk, number, attempt_id, resumed_from_step, created_at)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (job_pk, number) DO UPDATE SET resumed_from_step ="
            " CASE WHEN excluded.resumed_from_step < executions.resumed_from_step"
            " THEN excluded.resumed_from_step ELSE executions.resumed_from_step END RETURNING resumed_from_step",
            (attempt.job.pk, number, attempt.attempt_id, resumed, now),
        ).fetchall()
        return int(rows[0][0])

    def set_reported_execution(self, attempt: AttemptState) -> None:
        """Save the highest execution that has reported."""
        self._transaction.execute(
            "UPDATE attempts SET reported_execution = ?, resumed_from_step = ? WHERE id = ?",
            (attempt.reported_execution, attempt.resumed_from_step, attempt.attempt_id),
        )

    def store(
        self, batches: Sequence[AcceptedBatch], jobs: Sequence[JobState], keys: dict[str, int], now: int
    ) -> list[InsertResult]:
        """Insert new points, replace points that were logged earlier, and save the changed jobs.

        It must be the last call of the transaction: on Postgres the same round trip commits.

        Args:
            keys: Number of every metric name in the batches.
            now: Time in microseconds.
        """
        if not jobs:
            return []
        self._transaction.changed_job_pks.update(job.pk for job in jobs)
        counts = (self._store_sqlite if self._transaction.is_sqlite else self._store_postgres)(batches, jobs, keys, now)
        return [
            InsertResult(count, batch.reported - count, batch.job.pk, batch.job.id, batch.sequence)
            for batch, count in zip(batches, counts, strict=True)
        ]

    def _store_sqlite(
        self, batches: Sequence[AcceptedBatch], jobs: Sequence[JobState], keys: dict[str, int], now: int
    ) -> list[int]:
        changed = [
            (job.pk, job.sequence, _json(job.latest), _json(job.latest_points), _json(job.progress)) for job in jobs
        ]
        self._transaction.execute(_SQLITE_SAVE, (now, _json(changed)))
        return [self._insert_sqlite(batch, keys) for batch in batches]

    def _insert_sqlite(self, batch: AcceptedBatch, keys: dict[str, int]) -> int:
        stored = 0
        for count, values in _chunks(batch, keys):
            stored += self._transaction.execute(_sqlite_insert(count, "NOTHING"), values).rowcount
        if stored == len(batch.rows) or batch.rows[0][-1] is None:
            return stored
        # Some points were stored before, or occur twice in the batch. Few of these were logged later than the stored
        # points.
        repeats: Counter[int] = Counter()
        for count, values in _chunks(batch, keys):
            repeats.update(key for (key,) in self._transaction.execute(_sqlite_insert(count, "REPLACE"), values))
        spool = batch.rows[0][-1] >> SPOOL_SHIFT
        rows = [(batch.job.pk, batch.execution, key, spool, n, batch.sequence) for key, n in repeats.items()]
        self._transaction.execute_many(_SQLITE_REPEATS, rows)
        return stored + repeats.total()

    def _store_postgres(
        self, batches: Sequence[AcceptedBatch], jobs: Sequence[JobState], keys: dict[str, int], now: int
    ) -> list[int]:
        fields = ("pk", "sequence", "latest", "latest_points", "progress")
        changed = [{name: getattr(job, name) for name in fields} for job in jobs]
        statements: list[Statement] = [(_POSTGRES_SAVE, (now, _json(changed)))]
        for part in _distinct(batches):
            columns = [_array_bodies(batch, keys) for batch in part]
            literals = ["{" + ",".join(column) + "}" for column in zip(*columns, strict=True)]
            statements.append((_POSTGRES_INSERT, literals))
        cursors = self._transaction.execute_pipelined(*statements, commit=True)
        counts: Counter[tuple[int, int]] = Counter()
        for cursor in cursors[1:]:
            for job, sequence, count in cursor.fetchall():
                counts[job, sequence] += count
        return [counts[batch.job.pk, batch.sequence] for batch in batches]


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _job_state(
    pk: int,
    job_id: str,
    current: str | None,
    sequence: int,
    latest: str,
    points: str | None,
    restarts: Sequence[Sequence[int]] | None,
) -> JobState:
    known = _points.decode(points or "{}")
    positions = {(execution, key, spool): position for execution, key, spool, position in restarts or ()}
    return JobState(pk, job_id, current, sequence, msgspec.json.decode(latest), known, positions)


def _chunks(batch: AcceptedBatch, keys: dict[str, int]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of rows and the values of each statement that inserts a part of a batch on SQLite."""
    rows, done = batch.rows, 0
    for size in _STATEMENT_ROWS:
        while len(rows) - done >= size:
            values: list[Any] = [batch.job.pk, batch.execution, batch.sequence]
            for key, step, value, special, time, position in rows[done : done + size]:
                values += (keys[key], step, value, special, time, position)
            yield size, values
            done += size


def _distinct(batches: Sequence[AcceptedBatch]) -> Iterator[Sequence[AcceptedBatch]]:
    """Divide batches so that no part has two values for a step of a metric: Postgres refuses such a statement.

    The values of a step keep their order. Usually there is one part.
    """
    rest = [batch for batch in batches if batch.rows]
    while rest:
        used: set[tuple[int, int, str, int]] = set()
        part, repeated = [], []
        for batch in rest:
            job, execution = batch.job.pk, batch.execution
            steps = {(job, execution, row[0], row[1]) for row in batch.rows}
            if len(steps) == len(batch.rows) and used.isdisjoint(steps):
                used |= steps
                part.append(batch)
                continue
            first: list[PointRow] = []
            later: list[PointRow] = []
            for row in batch.rows:
                step = (job, execution, row[0], row[1])
                (later if step in used else first).append(row)
                used.add(step)
            part += [replace(batch, rows=first)] if first else []
            repeated.append(replace(batch, rows=later))
        yield part
        rest = repeated


def _array_bodies(batch: AcceptedBatch, keys: dict[str, int]) -> list[str]:
    """Return the content of the Postgres array literal of each column."""
    names, *others = zip(*batch.rows, strict=True)
    constants = (batch.job.pk, batch.execution, batch.sequence)
    repeated = [",".join([str(constant)] * len(batch.rows)) for constant in constants]
    return repeated + [array_elements(column) for column in ([keys[name] for name in names], *others)]


@cache
def _sqlite_insert(rows: int, conflict: Literal["NOTHING", "REPLACE"]) -> str:
    on_conflict = " ON CONFLICT DO NOTHING" if conflict == "NOTHING" else f"{_REPLACE} RETURNING key_pk"
    return f"{_SQLITE_INSERT}{','.join(['(?1,?2,?3,?,?,?,?,?,?)'] * rows)}{on_conflict}"
