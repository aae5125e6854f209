"""All SQL of the feed: the order in which the stream of all jobs tells what happened."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Checkpoint, Event, FeedEntry, FeedHead, FeedMark, Job, Point

_HEAD = 1
KEPT = 200_000
"""Entries; who was away for longer starts over from a reset."""


class Entry(NamedTuple):
    """A stretch of one job's sequence."""

    no: int
    job_no: int
    first: int
    last: int


class FeedRepository:
    """The feed within one session."""

    def __init__(self, session: Session, database: Database):
        self._session = session
        self._database = database

    def head(self) -> int:
        """The newest number, 0 at the very beginning."""
        return self._session.scalar(sa.select(FeedHead.no).where(FeedHead.id == _HEAD)) or 0

    def oldest(self) -> int:
        """The first number that is still there."""
        return self._session.scalar(sa.select(sa.func.min(FeedEntry.no))) or 0

    def behind(self, jobs: Collection[int] | None) -> list[tuple[int, int, int]]:
        """Of these jobs, or of all, those with something that is not in the feed: (job, from, to)."""
        told = sa.func.coalesce(FeedMark.sequence, 0)
        query = sa.select(Job.no, told + 1, Job.sequence).outerjoin(FeedMark, FeedMark.job_no == Job.no)
        query = query.where(Job.sequence > told)
        if jobs is not None:
            query = query.where(Job.no.in_(jobs))
        return [(no, first, last) for no, first, last in self._session.execute(query.order_by(Job.no))]

    def extend(self, jobs: Collection[int] | None) -> int:
        """Put into the feed what these jobs, or all, have new. The newest number then."""
        insert = self._database.insert(FeedHead).values(id=_HEAD, no=0)
        lock = insert.on_conflict_do_update(index_elements=[FeedHead.id], set_={"no": FeedHead.no})
        head: int = self._session.execute(lock.returning(FeedHead.no)).scalar_one()
        # Asked again under the lock: another process may have put it there.
        found = self.behind(jobs)
        if not found:
            return head
        rows = [
            {"no": head + place, "job_no": no, "first": first, "last": last}
            for place, (no, first, last) in enumerate(found, 1)
        ]
        self._session.execute(sa.insert(FeedEntry), rows)
        marks = self._database.insert(FeedMark)
        marks = marks.on_conflict_do_update(
            index_elements=[FeedMark.job_no], set_={"sequence": marks.excluded.sequence}
        )
        self._session.execute(marks, [{"job_no": no, "sequence": last} for no, _, last in found])
        head += len(rows)
        self._session.execute(sa.update(FeedHead).where(FeedHead.id == _HEAD).values(no=head))
        self._session.execute(sa.delete(FeedEntry).where(FeedEntry.no <= head - KEPT))
        return head

    def after(self, no: int, limit: int) -> list[Entry]:
        query = sa.select(FeedEntry.no, FeedEntry.job_no, FeedEntry.first, FeedEntry.last).where(FeedEntry.no > no)
        return [Entry(*row) for row in self._session.execute(query.order_by(FeedEntry.no).limit(limit))]

    def jobs(self, numbers: Collection[int]) -> dict[int, Job]:
        return {job.no: job for job in self._session.scalars(sa.select(Job).where(Job.no.in_(numbers)))}

    def events(self, entry: Entry) -> Sequence[Event]:
        within = Event.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Event).where(Event.job_no == entry.job_no, within)))

    def checkpoints(self, entry: Entry) -> Sequence[Checkpoint]:
        """Those too that are deleted since: a stream that is resumed tells what came, not what is left."""
        within = Checkpoint.sequence.between(entry.first, entry.last)
        return list(self._session.scalars(sa.select(Checkpoint).where(Checkpoint.job_no == entry.job_no, within)))

    def has_points(self, entry: Entry) -> bool:
        within = Point.sequence.between(entry.first, entry.last)
        return bool(self._session.scalar(sa.select(sa.exists().where(Point.job_no == entry.job_no, within))))

    def sequences(self, jobs: Collection[int]) -> dict[int, int]:
        rows = self._session.execute(sa.select(Job.no, Job.sequence).where(Job.no.in_(jobs)))
        return {no: sequence for no, sequence in rows}
