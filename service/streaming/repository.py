"""All SQL of streams: what follows a number in a job's sequence, and the feed that orders all jobs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

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
from service.metrics.values import decode_value

_FEED_ID = 1
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


class JobStreamRepository:
    """The rows of one job after a number in its sequence, ordered by that number."""

    def __init__(self, session: Session):
        self._session = session

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

    def events_after(self, job_pk: int, sequence: int, limit: int) -> list[Event]:
        query = sa.select(Event).where(Event.job_pk == job_pk, Event.sequence > sequence)
        return list(self._session.scalars(query.order_by(Event.sequence).limit(limit)))

    def checkpoints_after(self, job_pk: int, sequence: int, limit: int) -> list[Checkpoint]:
        query = sa.select(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.sequence > sequence)
        return list(self._session.scalars(query.order_by(Checkpoint.sequence).limit(limit)))

    def logs_after(self, job_pk: int, sequence: int, limit: int) -> list[tuple[LogChunk, int]]:
        """Return log chunks, each with its attempt's number."""
        query = sa.select(LogChunk, Attempt.number).join(Attempt, Attempt.id == LogChunk.attempt_id)
        query = query.where(LogChunk.job_pk == job_pk, LogChunk.sequence > sequence)
        rows = self._session.execute(query.order_by(LogChunk.sequence).limit(limit))
        return [(chunk, number) for chunk, number in rows]


class Entry(NamedTuple):
    """An entry of the feed: the numbers `first` to `last` of one job's sequence."""

    position: int
    job_pk: int
    first: int
    last: int


class FeedRepository:
    """The feed within one session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def head(self) -> int:
        """Return the newest position; 0 if the feed was never written."""
        return self._session.scalar(sa.select(FeedSequence.position).where(FeedSequence.id == _FEED_ID)) or 0

    def oldest(self) -> int:
        """Return the oldest position that is not trimmed."""
        return self._session.scalar(sa.select(sa.func.min(FeedEntry.position))) or 0

    def lagging_jobs(self, jobs: Collection[int] | None) -> list[tuple[int, int, int]]:
        """Return those of these jobs, or of all, with news that are not in the feed, as (job, first, last)."""
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
        head: int = self._session.execute(lock.returning(FeedSequence.position)).scalar_one()
        # Queried under the lock: another process may have appended them.
        lagging = self.lagging_jobs(jobs)
        if not lagging:
            return head
        rows = [
            {"position": position, "job_pk": pk, "first": first, "last": last}
            for position, (pk, first, last) in enumerate(lagging, head + 1)
        ]
        self._session.execute(sa.insert(FeedEntry), rows)
        cursors = self._database.insert(FeedCursor)
        cursors = cursors.on_conflict_do_update(
            index_elements=[FeedCursor.job_pk], set_={"sequence": cursors.excluded.sequence}
        )
        self._session.execute(cursors, [{"job_pk": pk, "sequence": last} for pk, _, last in lagging])
        head += len(rows)
        self._session.execute(sa.update(FeedSequence).where(FeedSequence.id == _FEED_ID).values(position=head))
        self._session.execute(sa.delete(FeedEntry).where(FeedEntry.position <= head - MAX_ENTRIES))
        return head

    def entries_from(self, position: int, limit: int) -> list[Entry]:
        query = sa.select(FeedEntry.position, FeedEntry.job_pk, FeedEntry.first, FeedEntry.last)
        query = query.where(FeedEntry.position >= position).order_by(FeedEntry.position)
        return [Entry(*row) for row in self._session.execute(query.limit(limit))]

    def jobs(self, job_pks: Collection[int]) -> dict[int, Job]:
        return {job.pk: job for job in self._session.scalars(sa.select(Job).where(Job.pk.in_(job_pks)))}

    def events(self, entry: Entry) -> Sequence[Event]:
        within = Event.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Event).where(Event.job_pk == entry.job_pk, within)))

    def checkpoints(self, entry: Entry) -> Sequence[Checkpoint]:
        """Return the entry's checkpoints, deleted ones too: a resumed stream repeats what happened."""
        within = Checkpoint.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Checkpoint).where(Checkpoint.job_pk == entry.job_pk, within)))

    def has_points(self, entry: Entry) -> bool:
        within = Point.sequence.between(entry.first, entry.last)
        return bool(self._session.scalar(sa.select(sa.exists().where(Point.job_pk == entry.job_pk, within))))
