"""All SQL about logs. A log is stored as chunks of bytes, of which the oldest are dropped beyond a limit."""

from collections.abc import Iterator
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Attempt, JobKey, LogChunk, LogStream, MetricKey, Point
from trainyard.contract.wire.reports import MAX_LOG_CHUNK

_REFERENCE_METRIC = "train/loss"
"""The metric whose points define the times of a job's steps, if the job has it."""

_CHUNKS_PER_FETCH = 32


class LogRepository:
    """Logs within a session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def lock_stream(self, attempt_id: str, rank: str) -> LogStream:
        """Return the locked stream of a rank; it is created if necessary."""
        row = {"attempt_id": attempt_id, "rank": rank, "size": 0}
        self._session.execute(self._database.insert(LogStream).values(row).on_conflict_do_nothing())
        query = sa.select(LogStream).where(LogStream.attempt_id == attempt_id, LogStream.rank == rank)
        return self._session.scalars(query.with_for_update()).one()

    def drop_before(self, attempt_id: str, rank: str, offset: int) -> None:
        """Delete the chunks that end at or before this byte."""
        chunks = (LogChunk.attempt_id == attempt_id, LogChunk.rank == rank, LogChunk.offset < offset)
        ended = LogChunk.offset + sa.func.length(LogChunk.data) <= offset
        self._session.execute(sa.delete(LogChunk).where(*chunks, ended).execution_options(synchronize_session=False))

    def sizes(self, attempt_id: str) -> dict[str, int]:
        """Return the size in bytes of each log of an attempt, by rank, including dropped bytes."""
        query = sa.select(LogStream.rank, LogStream.size).where(LogStream.attempt_id == attempt_id)
        return {key: value for key, value in self._session.execute(query)}

    def chunks(self, attempt_id: str, rank: str, *, offset: int, limit: int) -> list[LogChunk]:
        """Return the chunks with the bytes from `offset` on: `limit` bytes of them, or all up to the end."""
        query = sa.select(LogChunk).where(
            LogChunk.attempt_id == attempt_id,
            LogChunk.rank == rank,
            # With this bound the index finds the first chunk; the next condition alone would read all chunks before it.
            LogChunk.offset > offset - MAX_LOG_CHUNK,
            LogChunk.offset + sa.func.length(LogChunk.data) > offset,
        )
        chunks, size = [], 0
        for chunk in self._session.scalars(query.order_by(LogChunk.offset).execution_options(yield_per=8)):
            chunks.append(chunk)
            size += chunk.offset + len(chunk.data) - max(offset, chunk.offset)
            if size >= limit:
                break
        return chunks

    def raw_chunks(
        self, attempt_id: str, rank: str, *, first: int = 0, before: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Return offset and bytes of the chunks from byte `first` on.

        Args:
            before: Return the chunks before this byte instead, in reverse order.
        """
        query = sa.select(LogChunk.offset, LogChunk.data).where(
            LogChunk.attempt_id == attempt_id, LogChunk.rank == rank
        )
        if before is None:
            query = query.where(LogChunk.offset > first - MAX_LOG_CHUNK).order_by(LogChunk.offset)
        else:
            query = query.where(LogChunk.offset < before).order_by(LogChunk.offset.desc())
        rows = self._session.execute(query.execution_options(yield_per=_CHUNKS_PER_FETCH))
        return ((offset, data) for offset, data in rows)

    def offset_at(self, attempt_id: str, rank: str, time: datetime) -> int | None:
        """Return the offset of the first chunk that was received at this time or later."""
        query = sa.select(LogChunk.offset).where(
            LogChunk.attempt_id == attempt_id, LogChunk.rank == rank, LogChunk.received_at >= time
        )
        return self._session.scalar(query.order_by(LogChunk.received_at, LogChunk.offset).limit(1))

    def time_of_step(self, job_pk: int, step: int, attempt: Attempt | None) -> tuple[datetime, int] | None:
        """Return when the first point at this step or later was made, and its execution: the newest that reached it.

        Args:
            attempt: Only points of this attempt.
        """
        keys = sa.select(JobKey.key_pk).join(MetricKey, MetricKey.pk == JobKey.key_pk).where(JobKey.job_pk == job_pk)
        of_program = keys.where(MetricKey.is_of_program())
        key = self._session.scalar(of_program.order_by(MetricKey.name != _REFERENCE_METRIC, MetricKey.name).limit(1))
        query = sa.select(Point.time, Point.execution).where(
            Point.job_pk == job_pk, Point.key_pk == key, Point.step >= step
        )
        if attempt is not None:
            last = attempt.execution + attempt.max_restarts
            query = query.where(Point.execution.between(attempt.execution, last))
        row = self._session.execute(query.order_by(Point.step, Point.execution.desc()).limit(1)).one_or_none()
        return None if row is None else (row[0], row[1])

    def attempt_of_execution(self, job_pk: int, execution: int) -> int | None:
        """Return the number of the attempt that an execution belongs to."""
        query = sa.select(Attempt.number).where(Attempt.job_pk == job_pk, Attempt.execution <= execution)
        return self._session.scalar(query.order_by(Attempt.number.desc()).limit(1))
