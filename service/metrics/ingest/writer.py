"""Storing batches of points: any number of them in one transaction, each whole or not at all."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from service.core.errors import ConflictError, InvalidRequestError, NotFoundError, ServiceError
from service.db.engine import Database
from service.db.types import to_micros
from service.metrics.ingest.decoding import PointBatch
from service.metrics.ingest.latest import newest
from service.metrics.ingest.outcome import Outcome, Stored
from service.metrics.ingest.repository import (
    JobState,
    Known,
    NumberedRows,
    PointsRepository,
    Reported,
    Target,
)
from service.metrics.ingest.steady import portions, store

MAX_KEYS = 10_000
"""Names of metrics a job may use; more is a program that puts values into names."""


class PointWriter:
    """Writes groups of batches to one database. One thread at a time may use it."""

    def __init__(
        self,
        database: Database,
        stored: Callable[[Sequence[Stored]], None] = lambda _stored: None,
        turn: AbstractContextManager[bool] | None = None,
    ):
        """
        Args:
            stored: Is told of every group after its commit.
            turn: Shared by the writers of a process: two transactions that number new names could wait for each other.
        """
        self._database = database
        self._known = Known()
        self._stored = stored
        self._turn = turn or threading.Lock()

    @property
    def known_keys(self) -> dict[str, int]:
        """Names that were stored before, and are therefore valid."""
        return self._known.names

    def write(self, group: Sequence[tuple[str, PointBatch]], now: datetime) -> list[Outcome]:
        """Store the batches of these attempts in as few transactions as can be; an answer for each.

        A batch that is refused leaves no trace, and the others do not suffer from it.

        Raises:
            UnavailableError: the database does not answer; send all again, what was stored is then a duplicate.
        """
        outcomes = self._write_steadily(group, now) if self._database.dialect == "postgresql" else {}
        rest = [place for place in range(len(group)) if place not in outcomes]
        if rest:
            outcomes.update(zip(rest, self._write_any([group[place] for place in rest], now), strict=True))
        return [outcomes[place] for place in range(len(group))]

    def _write_steadily(self, group: Sequence[tuple[str, PointBatch]], now: datetime) -> dict[int, Outcome]:
        """What could be stored in one trip, by its place."""
        parts = portions(group, self._known, now)
        if parts is None:
            return {}
        with self._database.write_raw() as transaction:
            stored = store(transaction, group, parts, self._known.names, to_micros(now))
        self._stored(list(stored.values()))
        return dict(stored)

    def _write_any(self, group: Sequence[tuple[str, PointBatch]], now: datetime) -> list[Outcome]:
        try:
            with self._turn, self._database.write_raw() as transaction:
                outcomes = _Group(PointsRepository(transaction), self._known, now).write(group)
        except BaseException:
            self._known.forget()
            raise
        self._stored([outcome for outcome in outcomes if isinstance(outcome, Stored)])
        return outcomes


def point_writers(database: Database, stored: Callable[[Sequence[Stored]], None]) -> list[PointWriter]:
    """As many as the database has a use for: SQLite lets one write at a time."""
    turn = threading.Lock()
    return [PointWriter(database, stored, turn) for _ in range(2 if database.dialect == "postgresql" else 1)]


class _Group:
    """One transaction's worth."""

    def __init__(self, points: PointsRepository, known: Known, now: datetime):
        self._points = points
        self._known = known
        self._now = now
        self._micros = to_micros(now)

    def write(self, group: Sequence[tuple[str, PointBatch]]) -> list[Outcome]:
        targets = self._points.targets(sorted({attempt_id for attempt_id, _ in group}))
        places = [self._prepare(targets.get(attempt_id), attempt_id, batch) for attempt_id, batch in group]
        accepted = [place for place in places if isinstance(place, NumberedRows)]
        changed: dict[int, JobState] = {place.target.job.pk: place.target.job for place in accepted}
        jobs = sorted(changed.values(), key=lambda job: job.pk)
        counts = iter(self._points.store(accepted, jobs, self._micros))
        return [_outcome(place, next(counts)) if isinstance(place, NumberedRows) else place for place in places]

    def _prepare(self, target: Target | None, attempt_id: str, batch: PointBatch) -> NumberedRows | ServiceError:
        if target is None:
            return NotFoundError(f"there is no attempt {attempt_id!r}", code="attempt_not_found")
        if not target.first_execution <= batch.execution <= target.first_execution + target.max_restarts:
            message = f"execution {batch.execution} is not one of this attempt"
            return ConflictError(message, code="stale_execution", param="execution")
        keys = self._keys(target, {row[0] for row in batch.rows})
        if keys is None:
            message = f"a job may use at most {MAX_KEYS} names of metrics; put what varies into the value or the step"
            return InvalidRequestError(message, code="too_many_keys", param="points")
        target.job.sequence += 1
        self._refresh(target, batch)
        return NumberedRows(target, batch.execution, target.job.sequence, batch.rows, keys)

    def _keys(self, target: Target, names: set[str]) -> dict[str, int] | None:
        """The numbers of the names, new ones included; None when the job would have too many."""
        known = self._known.names
        used = self._known.job_keys.get(target.attempt_id)
        if used is not None and all(name in known and known[name] in used for name in names):
            return known
        used = self._known.job_keys[target.attempt_id] = self._points.job_keys(target.job.pk)
        known.update(self._points.key_numbers(name for name in names if name not in known))
        new = {name for name in names if name not in known or known[name] not in used}
        if len(used) + len(new) > MAX_KEYS:
            return None
        unnumbered = [name for name in new if name not in known]
        self._points.add_keys(unnumbered)
        known.update(self._points.key_numbers(unnumbered))
        self._points.add_job_keys(target.job.pk, {known[name] for name in new})
        used.update(known[name] for name in new)
        return known

    def _refresh(self, target: Target, batch: PointBatch) -> None:
        """The job's own copy of the newest values, which a list of jobs can show without a query for each."""
        if (target.attempt_id, batch.execution) not in self._known.executions:
            self._points.add_execution(target, batch.execution, batch.resumed_from_step, self._micros)
            self._known.executions.add((target.attempt_id, batch.execution))
        if batch.execution < (target.reported_execution or 0):
            return
        self._known.reported[target.attempt_id] = Reported(target.job.pk, batch.execution, batch.resumed_from_step)
        if (target.reported_execution, target.resumed_from_step) != (batch.execution, batch.resumed_from_step):
            target.reported_execution, target.resumed_from_step = batch.execution, batch.resumed_from_step
            self._points.note_execution(target)
        target.job.latest.update(newest(batch.rows))
        if batch.progress is not None and target.job.current_attempt == target.attempt_id:
            target.job.progress = {**batch.progress, "reported_at": self._now.isoformat()}


def _outcome(place: NumberedRows, fresh: int) -> Stored:
    job = place.target.job
    return Stored(fresh, len(place.rows) - fresh, job.pk, job.id, place.sequence)
