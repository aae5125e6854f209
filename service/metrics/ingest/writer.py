"""Storing of groups of batches: one transaction per group, and each batch whole or not at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from service.core.errors import AttemptEndedError, ConflictError, InvalidRequestError, NotFoundError, ServiceError
from service.core.positions import SPOOL_SHIFT, is_later
from service.db.engine import Database
from service.db.types import to_micros
from service.metrics.ingest.decode import PointBatch, batch_from_model
from service.metrics.ingest.repository import AcceptedBatch, AttemptState, InsertResult, JobState, PointsRepository
from service.metrics.ingest.restart_repository import RestartRepository
from service.metrics.values import PointRow, update_latest
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.reports import IDLE_GPUS, MetricsBatch

MAX_KEYS = 10_000
"""Metric names per job. More than that indicates a program that puts values into names."""
MAX_SYSTEM_KEYS = 10_000
"""Names of the metrics of the launchers beyond those, for a job on some hundred nodes."""

Outcome = InsertResult | ServiceError


@dataclass
class WriterCache:
    """Committed facts that stay true, so that a writer need not query them again."""

    names: dict[str, int] = field(default_factory=dict)
    """Number of each metric name."""
    executions: dict[tuple[str, int], int] = field(default_factory=dict)
    """An upper bound of the step that each recorded execution resumed from, by attempt id and execution."""
    job_keys: dict[str, set[int]] = field(default_factory=dict)
    """Metric numbers of a job, by attempt id: job numbers can be reused after a deletion."""

    def clear(self) -> None:
        self.names.clear()
        self.executions.clear()
        self.job_keys.clear()


class PointWriter:
    """Writes groups of batches to a database. Only one thread at a time may use it."""

    def __init__(
        self,
        database: Database,
        on_commit: Callable[[Sequence[InsertResult]], None] = lambda _results: None,
        *,
        accepts_ended: bool = False,
    ):
        """
        Args:
            on_commit: Called with the results of each group after its commit.
            accepts_ended: Whether to store points of attempts that have ended, from their spools.
        """
        self._database = database
        self._cache = WriterCache()
        self._on_commit = on_commit
        self._accepts_ended = accepts_ended

    @property
    def known_keys(self) -> dict[str, int]:
        """Metric names that were stored before, and are therefore valid, with their numbers."""
        return self._cache.names

    def write(self, group: Sequence[tuple[str, PointBatch]], now: datetime) -> list[Outcome]:
        """Store the batches, each with its attempt id, in one transaction, and return an outcome for each.

        A rejected batch leaves no trace and does not affect the others.

        Raises:
            UnavailableError: The database did not answer. Send the whole group again: stored points are duplicates.
        """
        try:
            with self._database.write_raw() as transaction:
                repositories = PointsRepository(transaction), RestartRepository(transaction)
                writer = GroupWriter(*repositories, self._cache, now, accepts_ended=self._accepts_ended)
                outcomes = writer.write(group)
        except BaseException:
            self._cache.clear()  # it may hold names of the transaction that was rolled back
            raise
        self._on_commit([outcome for outcome in outcomes if isinstance(outcome, InsertResult)])
        return outcomes


def store_batch(database: Database, attempt_id: str, batch: MetricsBatch, now: datetime, *, late: bool = False) -> int:
    """Store a batch without the queue, such as from a spool; return how many points are new or replace another point.

    Args:
        late: Whether the attempt may have ended.

    Raises:
        ServiceError: The batch was rejected.
        UnavailableError: The database did not answer.
    """
    (outcome,) = PointWriter(database, accepts_ended=late).write([(attempt_id, batch_from_model(batch))], now)
    if isinstance(outcome, ServiceError):
        raise outcome
    return outcome.stored


class GroupWriter:
    """Writes one group in one transaction."""

    def __init__(
        self,
        points: PointsRepository,
        restarts: RestartRepository,
        cache: WriterCache,
        now: datetime,
        *,
        accepts_ended: bool = False,
    ):
        self._accepts_ended = accepts_ended
        self._points = points
        self._restarts = restarts
        self._cache = cache
        self._now = now
        self._micros = to_micros(now)

    def write(self, group: Sequence[tuple[str, PointBatch]]) -> list[Outcome]:
        attempts = self._points.lock_attempts(sorted({attempt_id for attempt_id, _ in group}))
        checked = [self._accept(attempts.get(attempt_id), attempt_id, batch) for attempt_id, batch in group]
        accepted = [self._without_void(batch) for batch in checked if isinstance(batch, AcceptedBatch)]
        for batch in accepted:
            if batch.restarts:
                last = self._restarts.restart(batch, self._cache.names, self._micros)
                self._begin_again(batch, last)
        for batch in accepted:
            if batch.is_newest:
                # The values of a node are no results of the job: lists of jobs do not carry them.
                shown = (row for row in batch.rows if _is_stored(row[0]))
                update_latest(batch.job.latest, batch.job.latest_points, batch.execution, shown)
        changed: dict[int, JobState] = {batch.job.pk: batch.job for batch in accepted}
        jobs = sorted(changed.values(), key=lambda job: job.pk)
        results = iter(self._points.store(accepted, jobs, self._cache.names, self._micros))
        return [next(results) if isinstance(batch, AcceptedBatch) else batch for batch in checked]

    def _accept(self, attempt: AttemptState | None, attempt_id: str, batch: PointBatch) -> AcceptedBatch | ServiceError:
        if attempt is None:
            return NotFoundError(f"there is no attempt {attempt_id!r}", code="attempt_not_found")
        if attempt.ended_at is not None and not self._accepts_ended:
            return AttemptEndedError(attempt_id)
        if not attempt.first_execution <= batch.execution <= attempt.first_execution + attempt.max_restarts:
            message = f"execution {batch.execution} does not belong to this attempt"
            return ConflictError(message, code="stale_execution", param="execution")
        if not self._register_keys(attempt, {row[0] for row in batch.rows}.union(batch.restarts)):
            message = f"a job may use at most {MAX_KEYS} metric names; put varying parts into the value or the step"
            return InvalidRequestError(message, code="too_many_keys", param="points")
        job = attempt.job
        job.sequence += 1
        restarts, is_newest = self._add_restarts(job, batch), self._is_newest(attempt, batch)
        if is_newest and batch.progress is not None:
            self._set_progress(job, batch, batch.progress)
        return AcceptedBatch(job, batch.execution, job.sequence, batch.rows, len(batch.rows), restarts, is_newest)

    def _add_restarts(self, job: JobState, batch: PointBatch) -> dict[str, int]:
        """Remember which curves begin again, and return those for which that is new, with the first position."""
        restarts: dict[str, int] = {}
        position = batch.position or 0
        for name in batch.restarts:
            series = (batch.execution, self._cache.names[name], position >> SPOOL_SHIFT)
            if position > job.restarts.get(series, -1):
                restarts[name] = job.restarts[series] = position
        return restarts

    def _begin_again(self, batch: AcceptedBatch, last: Sequence[PointRow]) -> None:
        """Take the latest values of the curves that begin again from the points that they still have."""
        if batch.is_newest:
            for name in batch.restarts:
                batch.job.latest.pop(name, None)
            update_latest(batch.job.latest, batch.job.latest_points, batch.execution, last)

    def _without_void(self, batch: AcceptedBatch) -> AcceptedBatch:
        """Leave out the points of curves that began again after them."""
        first = batch.job.restarts
        if not first:
            return batch
        names, execution = self._cache.names, batch.execution
        rows = [
            row
            for row in batch.rows
            if row[-1] is None or row[-1] >= first.get((execution, names[row[0]], row[-1] >> SPOOL_SHIFT), 0)
        ]
        return replace(batch, rows=rows)

    def _register_keys(self, attempt: AttemptState, names: set[str]) -> bool:
        """Give every name a number, for this job too; return False when the job would have too many names."""
        known = self._cache.names
        used = self._cache.job_keys.get(attempt.attempt_id)
        if used is not None and all(name in known and known[name] in used for name in names):
            return True
        used = self._cache.job_keys[attempt.attempt_id] = self._points.job_keys(attempt.job.pk)
        known.update(self._points.key_numbers(name for name in names if name not in known))
        new = {name for name in names if name not in known or known[name] not in used}
        of_system = all(name.startswith(SYSTEM_PREFIXES) for name in new)
        if len(used) + len(new) > MAX_KEYS + (MAX_SYSTEM_KEYS if of_system else 0):
            return False
        unnumbered = [name for name in new if name not in known]
        self._points.add_keys(unnumbered)
        known.update(self._points.key_numbers(unnumbered))
        self._points.add_job_keys(attempt.job.pk, {known[name] for name in new})
        used.update(known[name] for name in new)
        return True

    def _lowest_resume_step(self, attempt: AttemptState, batch: PointBatch) -> int:
        """Record the execution and the lowest step that its batches give; return the lowest step known so far."""
        entry = (attempt.attempt_id, batch.execution)
        lowest = self._cache.executions.get(entry)
        if lowest is None or batch.resumed_from_step < lowest:
            lowest = self._points.add_execution(attempt, batch.execution, batch.resumed_from_step, self._micros)
            self._cache.executions[entry] = lowest
        return lowest

    def _is_newest(self, attempt: AttemptState, batch: PointBatch) -> bool:
        """Record the execution; return whether no later execution has reported, and the job has no other attempt."""
        lowest = self._lowest_resume_step(attempt, batch)
        if batch.execution < (attempt.reported_execution or 0):
            return False
        if batch.execution == attempt.reported_execution and attempt.resumed_from_step is not None:
            lowest = min(lowest, attempt.resumed_from_step)
        if (attempt.reported_execution, attempt.resumed_from_step) != (batch.execution, lowest):
            attempt.reported_execution, attempt.resumed_from_step = batch.execution, lowest
            self._points.set_reported_execution(attempt)
        return attempt.job.current_attempt == attempt.attempt_id

    def _set_progress(self, job: JobState, batch: PointBatch, progress: dict[str, Any]) -> None:
        """Take the progress of a batch, unless the progress of a later record arrived before."""
        execution, _, position = job.latest_points.get("", (0, 0, None))
        if execution != batch.execution or not is_later(position, batch.position):
            job.latest_points[""] = (batch.execution, 0, batch.position)
            job.progress = {**progress, "reported_at": self._now.isoformat()}


def _is_stored(name: str) -> bool:
    """Whether the latest value is kept with the job: of the system's, only the numbers of idle GPUs, for advice."""
    return not name.startswith(SYSTEM_PREFIXES) or name.endswith(f"/{IDLE_GPUS}")
