"""All SQL of streams: the rows after a number in a job's sequence, and the feed that orders all jobs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import (
    Attempt,
    Checkpoint,
    Event,
    FeedCursor,
    FeedEntry,
    FeedSequence,
    Job,
    LogChunk,
    MetricKey,
    Point,
)
from service.db.repository import Repository
from service.metrics.values import decode_value

_FEED_ID = 1
MAX_ROWS = 1000
"""Maximum number of events or checkpoints per read."""
_MAX_LOG_CHUNKS = 100
MAX_READ_BYTES = 512 * 1024
"""Maximum size of the rows of a kind in a read, or of a single row. Encoded, a message may have six times as much."""
NO_LIMIT = 2**62
_SMALL_ENTRY = 16
"""Numbers of an entry that is read without looking at the size of its rows."""
MAX_ENTRIES = 200_000
"""Entries that the feed keeps. A client that missed more receives a reset."""


@dataclass(frozen=True)
class StoredPoint:
    """A point as it was reported."""

    key: str
    step: int
    execution: int
    value: float
    time: datetime
    sequence: int


class JobStreamRepository(Repository):
    """The rows of a job after a number in its sequence, ordered by that number."""

    def points_after(self, job_pk: int, sequence: int, limit: int) -> list[StoredPoint]:
        query = sa.select(
            MetricKey.name, Point.step, Point.execution, Point.value, Point.special, Point.time, Point.sequence
        ).join(MetricKey, MetricKey.pk == Point.key_pk)
        query = query.where(Point.job_pk == job_pk, Point.sequence > sequence)
        rows = self._session.execute(query.order_by(Point.sequence, MetricKey.name, Point.step).limit(limit))
        return [
            StoredPoint(key, step, execution, decode_value(value, special), time, number)
            for key, step, execution, value, special, time, number in rows
        ]

    def last_readable(self, job_pk: int, after: int, *, logs: bool) -> int:
        """Return the number up to which a read after a number may go on; `NO_LIMIT` if all rows are within bounds."""
        event_size = sa.func.length(Event.message) + sa.func.length(sa.cast(Event.data, sa.Text))
        columns: list[tuple[Any, Any, Any, int]] = [
            (Event.job_pk, Event.sequence, event_size, MAX_ROWS),
            (Checkpoint.job_pk, Checkpoint.sequence, sa.func.length(sa.cast(Checkpoint.metrics, sa.Text)), MAX_ROWS),
        ]
        if logs:
            columns.append((LogChunk.job_pk, LogChunk.sequence, sa.func.length(LogChunk.data), _MAX_LOG_CHUNKS))
        limits = []
        for key, sequence, size, limit in columns:
            query = sa.select(sequence, size).where(key == job_pk, sequence > after).order_by(sequence).limit(limit)
            limits.append(last_within_bounds([(row[0], row[1]) for row in self._session.execute(query)], limit))
        return min(limits)

    def events(self, job_pk: int, after: int, last: int) -> list[Event]:
        """Return the events with numbers after `after`, up to `last`."""
        query = sa.select(Event).where(Event.job_pk == job_pk, Event.sequence > after, Event.sequence <= last)
        return list(self._session.scalars(query.order_by(Event.sequence)))

    def checkpoints(self, job_pk: int, after: int, last: int) -> list[Checkpoint]:
        """Return the checkpoints with these numbers."""
        numbers = (Checkpoint.sequence > after, Checkpoint.sequence <= last)
        query = sa.select(Checkpoint).where(Checkpoint.job_pk == job_pk, *numbers)
        return list(self._session.scalars(query.order_by(Checkpoint.sequence)))

    def logs(self, job_pk: int, after: int, last: int) -> list[tuple[LogChunk, int]]:
        """Return the log chunks with these numbers, each with its attempt's number."""
        query = sa.select(LogChunk, Attempt.number).join(Attempt, Attempt.id == LogChunk.attempt_id)
        query = query.where(LogChunk.job_pk == job_pk, LogChunk.sequence > after, LogChunk.sequence <= last)
        rows = self._session.execute(query.order_by(LogChunk.sequence))
        return [(chunk, number) for chunk, number in rows]


def last_within_bounds(sizes: Sequence[tuple[int, int]], limit: int) -> int:
    """Return the last number whose rows a read may take, at least the first; `NO_LIMIT` if there are no others.

    Args:
        sizes: The number and the size of the next rows, at most `limit` of them.
    """
    total = 0
    for sequence, size in sizes:
        total += size
        if total > MAX_READ_BYTES and sequence > sizes[0][0]:
            return sequence - 1
    if len(sizes) < limit:
        return NO_LIMIT
    # The read may have cut the rows of its last number.
    return sizes[-1][0] - 1 if sizes[-1][0] > sizes[0][0] else sizes[-1][0]


class Entry(NamedTuple):
    """An entry of the feed: the numbers `first` to `last` of a job's sequence."""

    position: int
    job_pk: int
    first: int
    last: int


class FeedRepository:
    """The feed within a session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def newest(self) -> int:
        """Return the newest position; 0 if the feed was never written."""
        return self._session.scalar(sa.select(FeedSequence.position).where(FeedSequence.id == _FEED_ID)) or 0

    def oldest(self) -> int:
        """Return the oldest position that is not trimmed."""
        return self._session.scalar(sa.select(sa.func.min(FeedEntry.position))) or 0

    def lagging_jobs(self, jobs: Collection[int] | None) -> list[tuple[int, int, int]]:
        """Return the jobs with news that the feed lacks, among these jobs or all, as (job, first, last)."""
        covered = sa.func.coalesce(FeedCursor.sequence, 0)
        query = sa.select(Job.pk, covered + 1, Job.sequence).outerjoin(FeedCursor, FeedCursor.job_pk == Job.pk)
        query = query.where(Job.sequence > covered)
        if jobs is not None:
            query = query.where(Job.pk.in_(jobs))
        return [(pk, first, last) for pk, first, last in self._session.execute(query.order_by(Job.pk))]

    def append(self, jobs: Collection[int] | None) -> int:
        """Append the news of these jobs, or of all, and trim the feed; return its newest position."""
        insert = self._database.insert(FeedSequence).values(id=_FEED_ID, position=0)
        lock = insert.on_conflict_do_update(index_elements=[FeedSequence.id], set_={"position": FeedSequence.position})
        newest: int = self._session.execute(lock.returning(FeedSequence.position)).scalar_one()
        # Queried under the lock: another process may have appended them.
        lagging = self.lagging_jobs(jobs)
        if not lagging:
            return newest
        rows = [
            {"position": position, "job_pk": pk, "first": first, "last": last}
            for position, (pk, first, last) in enumerate(lagging, newest + 1)
        ]
        self._session.execute(sa.insert(FeedEntry), rows)
        cursors = self._database.insert(FeedCursor)
        cursors = cursors.on_conflict_do_update(
            index_elements=[FeedCursor.job_pk], set_={"sequence": cursors.excluded.sequence}
        )
        self._session.execute(cursors, [{"job_pk": pk, "sequence": last} for pk, _, last in lagging])
        newest += len(rows)
        self._session.execute(sa.update(FeedSequence).where(FeedSequence.id == _FEED_ID).values(position=newest))
        self._session.execute(sa.delete(FeedEntry).where(FeedEntry.position <= newest - MAX_ENTRIES))
        return newest

    def entries_from(self, position: int, limit: int) -> list[Entry]:
        query = sa.select(FeedEntry.position, FeedEntry.job_pk, FeedEntry.first, FeedEntry.last)
        query = query.where(FeedEntry.position >= position).order_by(FeedEntry.position)
        return [Entry(*row) for row in self._session.execute(query.limit(limit))]

    def readable_part(self, entry: Entry) -> Entry:
        """Return the first part of an entry that a read may take; a job can report any amount between two reads."""
        if entry.last - entry.first < _SMALL_ENTRY:
            return entry
        last = JobStreamRepository(self._session).last_readable(entry.job_pk, entry.first - 1, logs=False)
        return entry._replace(last=min(entry.last, last))

    def jobs(self, job_pks: Collection[int]) -> dict[int, Job]:
        return {job.pk: job for job in self._session.scalars(sa.select(Job).where(Job.pk.in_(job_pks)))}

    def events(self, entry: Entry) -> Sequence[Event]:
        within = Event.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Event).where(Event.job_pk == entry.job_pk, within)))

    def checkpoints(self, entry: Entry) -> Sequence[Checkpoint]:
        """Return the entry's checkpoints, including deleted checkpoints: a resumed stream repeats the history."""
        within = Checkpoint.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Checkpoint).where(Checkpoint.job_pk == entry.job_pk, within)))

    def has_points(self, entry: Entry) -> bool:
        within = Point.sequence.between(entry.first, entry.last)
        return bool(self._session.scalar(sa.select(sa.exists().where(Point.job_pk == entry.job_pk, within))))
