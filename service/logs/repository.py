"""All SQL about logs. A log is stored as chunks of bytes, of which the oldest are dropped beyond a limit."""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import LogChunk, LogStream
from trainyard.contract.wire.reports import MAX_LOG_CHUNK


class LogRepository:
    """Logs within one session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def lock_stream(self, attempt_id: str, rank: str) -> LogStream:
        """Return the locked stream of one rank; it is created if necessary."""
        row = {"attempt_id": attempt_id, "rank": rank, "size": 0}
        self._session.execute(self._database.insert(LogStream).values(row).on_conflict_do_nothing())
        query = sa.select(LogStream).where(LogStream.attempt_id == attempt_id, LogStream.rank == rank)
        return self._session.scalars(query.with_for_update()).one()

    def add(self, chunk: LogChunk) -> None:
        self._session.add(chunk)

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
        """Return the chunks with the bytes from `offset` on, about `limit` bytes of them."""
        query = sa.select(LogChunk).where(
            LogChunk.attempt_id == attempt_id,
            LogChunk.rank == rank,
            # By this bound the index finds the first chunk; the next condition alone would read all chunks before it.
            LogChunk.offset > offset - MAX_LOG_CHUNK,
            LogChunk.offset + sa.func.length(LogChunk.data) > offset,
        )
        chunks, size = [], 0
        for chunk in self._session.scalars(query.order_by(LogChunk.offset).execution_options(yield_per=8)):
            chunks.append(chunk)
            size += len(chunk.data)
            if size >= limit:
                break
        return chunks

    def chunks_from_end(self, attempt_id: str, rank: str) -> Iterable[LogChunk]:
        """Return the chunks in reverse order."""
        query = sa.select(LogChunk).where(LogChunk.attempt_id == attempt_id, LogChunk.rank == rank)
        return self._session.scalars(query.order_by(LogChunk.offset.desc()).execution_options(yield_per=8))
