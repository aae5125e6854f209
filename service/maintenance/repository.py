"""All SQL about deletions and disk use."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.models import Checkpoint, DownsampledPoint, Job, LogChunk, Point
from service.jobs.states import ACTIVE

_PIECE = 10_000
"""Rows deleted in one transaction: other writers wait no longer than for that."""


class MaintenanceRepository:
    """Jobs and checkpoints as the housekeeper sees them, within one session."""

    def __init__(self, session: Session):
        self._session = session

    def deleted_jobs(self) -> list[Job]:
        """Those whose deletion was asked for."""
        return list(
            self._session.scalars(sa.select(Job).where(Job.deletion_requested_at.is_not(None)).order_by(Job.pk))
        )

    def delete_piece(self, job_pk: int) -> bool:
        """Delete some of the many rows of a job; False when only few are left."""
        return any(self._delete_some(table, job_pk) for table in (Point, LogChunk))

    def _delete_some(self, table: type[Point] | type[LogChunk], job_pk: int) -> bool:
        place = table.sequence
        newest = sa.select(place).where(table.job_pk == job_pk).order_by(place).offset(_PIECE).limit(1)
        bound = self._session.scalar(newest)
        if bound is None:
            return False
        # One delivery has one number and at most a thousand rows.
        self._session.execute(sa.delete(table).where(table.job_pk == job_pk, place <= bound))
        return True

    def delete_job(self, job_pk: int) -> None:
        """The job, and with it every row that belongs to it."""
        # First the job, for whose row a writer of points waits or is waited for: what it stored is then seen.
        self._session.execute(sa.delete(Job).where(Job.pk == job_pk))
        for table in (Point, DownsampledPoint):
            self._session.execute(sa.delete(table).where(table.job_pk == job_pk))

    def removed_checkpoints(self) -> Sequence[tuple[str, str, int]]:
        """Those whose removal was asked for: id, job, step."""
        query = sa.select(Checkpoint.id, Job.id, Checkpoint.step).join(Job, Job.pk == Checkpoint.job_pk)
        return [(id_, job, step) for id_, job, step in self._session.execute(query.where(Checkpoint.removing))]

    def checkpoint_removed(self, checkpoint_id: str) -> None:
        statement = sa.update(Checkpoint).where(Checkpoint.id == checkpoint_id).values(removing=False)
        self._session.execute(statement)
        owner = sa.select(Checkpoint.job_pk).where(Checkpoint.id == checkpoint_id).scalar_subquery()
        self._session.execute(sa.update(Job).where(Job.pk == owner).values(measured_at=None))

    def is_to_be_removed(self, checkpoint_id: str) -> bool:
        """Asked again at the last moment: a run that went back may have written it anew."""
        return bool(self._session.scalar(sa.select(Checkpoint.removing).where(Checkpoint.id == checkpoint_id)))

    def to_measure(self, before: datetime, limit: int) -> Sequence[tuple[int, str]]:
        """Jobs never measured since they changed for good, then those under way that were last measured before."""
        fresh = sa.select(Job.pk, Job.id).where(Job.measured_at.is_(None), Job.deletion_requested_at.is_(None))
        found = list(self._session.execute(fresh.order_by(Job.pk).limit(limit)))
        stale = sa.select(Job.pk, Job.id).where(Job.status.in_(ACTIVE), Job.measured_at < before)
        found += list(self._session.execute(stale.order_by(Job.measured_at).limit(limit - len(found))))
        return [(pk, id_) for pk, id_ in found]

    def measured(self, job_pk: int, size: int, now: datetime) -> None:
        self._session.execute(sa.update(Job).where(Job.pk == job_pk).values(disk_bytes=size, measured_at=now))

    def kept_steps(self, job_pk: int) -> list[int]:
        """Steps of the checkpoints that the job is said to have."""
        query = sa.select(Checkpoint.step).where(Checkpoint.job_pk == job_pk, Checkpoint.deleted_at.is_(None))
        return list(self._session.scalars(query))

    def checkpoints_gone(self, job_pk: int, steps: Sequence[int], now: datetime) -> None:
        """Their folders are not there: damaged ones that were set aside, or removed by hand."""
        gone = sa.update(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.step.in_(steps))
        self._session.execute(gone.values(deleted_at=now))

    def usage(self) -> Sequence[tuple[str, int, int]]:
        """What each person's jobs hold on disk: name, jobs, bytes."""
        query = sa.select(Job.created_by, sa.func.count(), sa.func.coalesce(sa.func.sum(Job.disk_bytes), 0))
        rows = self._session.execute(query.group_by(Job.created_by).order_by(Job.created_by))
        return [(name, count, int(size or 0)) for name, count, size in rows]

    def usage_of(self, name: str) -> int:
        """Bytes that the jobs of one person hold on disk."""
        query = sa.select(sa.func.coalesce(sa.func.sum(Job.disk_bytes), 0)).where(Job.created_by == name)
        return int(self._session.scalar(query) or 0)

    def running(self) -> list[Job]:
        """Jobs that may write to the disk."""
        return list(self._session.scalars(sa.select(Job).where(Job.status.in_(("running", "pausing")))))

    def codes(self) -> set[str]:
        """Digests of the code that jobs refer to; reads the spec of every job."""
        digest = Job.spec["code"].as_string()
        return {found for found in self._session.scalars(sa.select(digest).distinct()) if found is not None}

    def job_ids(self) -> set[str]:
        """Of all jobs, those included whose deletion was asked for."""
        return set(self._session.scalars(sa.select(Job.id)))
