"""All SQL about points, logs and executions. No ORM objects on the way of points: there are many."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Attempt, Checkpoint, Event, Execution, Job, LogChunk, LogStream, MetricKey, Point
from service.metrics.values import decode_value

_PointQuery = sa.Select[str, int, int, float | None, int, datetime, int]

_POINTS = sa.select(
    MetricKey.name, Point.step, Point.execution, Point.value, Point.special, Point.time, Point.sequence
).join(MetricKey, MetricKey.pk == Point.key_pk)


@dataclass(frozen=True)
class StoredPoint:
    """A point as it is read back."""

    key: str
    step: int
    execution: int
    value: float
    time: datetime
    sequence: int


class ReportRepository:
    """Reports within one session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def executions(self, job_pk: int) -> dict[int, int]:
        """The step that each execution resumed from."""
        query = sa.select(Execution.number, Execution.resumed_from_step).where(Execution.job_pk == job_pk)
        return {key: value for key, value in self._session.execute(query)}

    def points_after(self, job_pk: int, sequence: int, limit: int) -> list[StoredPoint]:
        """Points in order of arrival."""
        query = _POINTS.where(Point.job_pk == job_pk, Point.sequence > sequence)
        return self._read(query.order_by(Point.sequence, MetricKey.name, Point.step).limit(limit))

    def _read(self, query: _PointQuery) -> list[StoredPoint]:
        rows = self._session.execute(query)
        return [
            StoredPoint(key, step, execution, decode_value(value, special), time, sequence)
            for key, step, execution, value, special, time, sequence in rows
        ]

    def events_after(self, job_pk: int, sequence: int, limit: int) -> list[Event]:
        query = sa.select(Event).where(Event.job_pk == job_pk, Event.sequence > sequence)
        return list(self._session.scalars(query.order_by(Event.sequence).limit(limit)))

    def checkpoints_after(self, job_pk: int, sequence: int, limit: int) -> list[Checkpoint]:
        query = sa.select(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.sequence > sequence)
        return list(self._session.scalars(query.order_by(Checkpoint.sequence).limit(limit)))

    def logs_after(self, job_pk: int, sequence: int, limit: int) -> list[tuple[LogChunk, int]]:
        """Log chunks in order of arrival, each with its attempt's number."""
        query = sa.select(LogChunk, Attempt.number).join(Attempt, Attempt.id == LogChunk.attempt_id)
        query = query.where(LogChunk.job_pk == job_pk, LogChunk.sequence > sequence)
        return [
            (chunk, number) for chunk, number in self._session.execute(query.order_by(LogChunk.sequence).limit(limit))
        ]

    def has_event(self, job_pk: int, execution: int, worker_sequence: int) -> bool:
        query = sa.select(Event.pk).where(
            Event.job_pk == job_pk, Event.execution == execution, Event.worker_sequence == worker_sequence
        )
        return self._session.scalar(query) is not None

    def checkpoint(self, job_pk: int, step: int) -> Checkpoint | None:
        return self._session.scalar(sa.select(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.step == step))

    def add(self, row: object) -> None:
        self._session.add(row)

    def forget_checkpoints(self, job_pk: int, steps: Sequence[int], now: datetime) -> None:
        """Their files are gone."""
        gone = sa.update(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.step.in_(steps))
        self._session.execute(gone.values(deleted_at=now))

    def claim(self, attempt_id: str, nonce: str, now: datetime, nodes: list[str]) -> bool:
        """Compare and set: one claimant an attempt, whose repeated request is granted again."""
        free = sa.or_(Attempt.claim_nonce.is_(None), Attempt.claim_nonce == nonce)
        statement = sa.update(Attempt).where(Attempt.id == attempt_id, free, Attempt.ended_at.is_(None))
        values = {
            "claim_nonce": nonce,
            "claimed_at": sa.func.coalesce(Attempt.claimed_at, sa.literal(now, Attempt.claimed_at.type)),
            "heartbeat_at": now,
            "nodes": nodes,
        }
        result = self._session.execute(statement.values(values).execution_options(synchronize_session=False))
        return cast(sa.CursorResult[Any], result).rowcount == 1

    def log_stream(self, attempt_id: str, rank: str) -> LogStream:
        """One rank's log, with other writers of it waiting; made when first asked for."""
        row = {"attempt_id": attempt_id, "rank": rank, "size": 0}
        self._session.execute(self._database.insert(LogStream).values(row).on_conflict_do_nothing())
        query = sa.select(LogStream).where(LogStream.attempt_id == attempt_id, LogStream.rank == rank)
        return self._session.scalars(query.with_for_update()).one()

    def drop_log(self, attempt_id: str, rank: str, before: int) -> None:
        """Forget the chunks that end before this byte; the newest ones stay."""
        old = (LogChunk.attempt_id == attempt_id, LogChunk.rank == rank, LogChunk.offset < before)
        whole = LogChunk.offset + sa.func.length(LogChunk.data) <= before
        self._session.execute(sa.delete(LogChunk).where(*old, whole).execution_options(synchronize_session=False))

    def log_ranks(self, attempt_id: str) -> dict[str, int]:
        """The size of every log of an attempt that has arrived, by rank."""
        query = sa.select(LogStream.rank, LogStream.size).where(LogStream.attempt_id == attempt_id)
        return {key: value for key, value in self._session.execute(query)}

    def log_chunks(self, attempt_id: str, rank: str, *, offset: int, limit: int) -> list[LogChunk]:
        """The chunks that hold the bytes from `offset` on, about `limit` bytes of them."""
        query = sa.select(LogChunk).where(
            LogChunk.attempt_id == attempt_id,
            LogChunk.rank == rank,
            LogChunk.offset + sa.func.length(LogChunk.data) > offset,
        )
        found, size = [], 0
        for chunk in self._session.scalars(query.order_by(LogChunk.offset)):
            found.append(chunk)
            size += len(chunk.data)
            if size >= limit:
                break
        return found

    def log_chunks_backwards(self, attempt_id: str, rank: str) -> Iterable[LogChunk]:
        """The newest chunk first."""
        query = sa.select(LogChunk).where(LogChunk.attempt_id == attempt_id, LogChunk.rank == rank)
        return self._session.scalars(query.order_by(LogChunk.offset.desc()).execution_options(yield_per=8))

    def job_of(self, attempt: Attempt) -> Job:
        return self._session.scalars(sa.select(Job).where(Job.pk == attempt.job_pk)).one()
