"""All SQL of the feed: the order in which the stream of all jobs tells what happened."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Checkpoint, Event, FeedCursor, FeedEntry, FeedSequence, Job, Point

_HEAD = 1
KEPT = 200_000
"""Entries; who was away for longer starts over from a reset."""


class Entry(NamedTuple):
    """A stretch of one job's sequence."""

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
        """The newest number, 0 at the very beginning."""
        return self._session.scalar(sa.select(FeedSequence.position).where(FeedSequence.id == _HEAD)) or 0

    def oldest(self) -> int:
        """The first number that is still there."""
        return self._session.scalar(sa.select(sa.func.min(FeedEntry.position))) or 0

    def behind(self, jobs: Collection[int] | None) -> list[tuple[int, int, int]]:
        """Of these jobs, or of all, those with something that is not in the feed: (job, from, to)."""
        told = sa.func.coalesce(FeedCursor.sequence, 0)
        query = sa.select(Job.pk, told + 1, Job.sequence).outerjoin(FeedCursor, FeedCursor.job_pk == Job.pk)
        query = query.where(Job.sequence > told)
        if jobs is not None:
            query = query.where(Job.pk.in_(jobs))
        return [(pk, first, last) for pk, first, last in self._session.execute(query.order_by(Job.pk))]

    def extend(self, jobs: Collection[int] | None) -> int:
        """Put into the feed what these jobs, or all, have new. The newest number then."""
        insert = self._database.insert(FeedSequence).values(id=_HEAD, position=0)
        lock = insert.on_conflict_do_update(index_elements=[FeedSequence.id], set_={"position": FeedSequence.position})
        head: int = self._session.execute(lock.returning(FeedSequence.position)).scalar_one()
        # Asked again under the lock: another process may have put it there.
        found = self.behind(jobs)
        if not found:
            return head
        rows = [
            {"position": head + place, "job_pk": pk, "first": first, "last": last}
            for place, (pk, first, last) in enumerate(found, 1)
        ]
        self._session.execute(sa.insert(FeedEntry), rows)
        marks = self._database.insert(FeedCursor)
        marks = marks.on_conflict_do_update(
            index_elements=[FeedCursor.job_pk], set_={"sequence": marks.excluded.sequence}
        )
        self._session.execute(marks, [{"job_pk": pk, "sequence": last} for pk, _, last in found])
        head += len(rows)
        self._session.execute(sa.update(FeedSequence).where(FeedSequence.id == _HEAD).values(position=head))
        self._session.execute(sa.delete(FeedEntry).where(FeedEntry.position <= head - KEPT))
        return head

    def after(self, position: int, limit: int) -> list[Entry]:
        query = sa.select(FeedEntry.position, FeedEntry.job_pk, FeedEntry.first, FeedEntry.last).where(
            FeedEntry.position > position
        )
        return [Entry(*row) for row in self._session.execute(query.order_by(FeedEntry.position).limit(limit))]

    def jobs(self, numbers: Collection[int]) -> dict[int, Job]:
        return {job.pk: job for job in self._session.scalars(sa.select(Job).where(Job.pk.in_(numbers)))}

    def events(self, entry: Entry) -> Sequence[Event]:
        within = Event.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Event).where(Event.job_pk == entry.job_pk, within)))

    def checkpoints(self, entry: Entry) -> Sequence[Checkpoint]:
        """Those too that are deleted since: a stream that is resumed tells what came, not what is left."""
        within = Checkpoint.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Checkpoint).where(Checkpoint.job_pk == entry.job_pk, within)))

    def has_points(self, entry: Entry) -> bool:
        within = Point.sequence.between(entry.first, entry.last)
        return bool(self._session.scalar(sa.select(sa.exists().where(Point.job_pk == entry.job_pk, within))))

    def sequences(self, jobs: Collection[int]) -> dict[int, int]:
        rows = self._session.execute(sa.select(Job.pk, Job.sequence).where(Job.pk.in_(jobs)))
        return {pk: sequence for pk, sequence in rows}
