"""All SQL about deletion and disk use."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from service.db.models import Checkpoint, DownsampledPoint, Job, LogChunk, Point
from service.db.repository import Repository
from service.jobs.dependencies import DependencyRepository
from service.jobs.states import ACTIVE

_BATCH = 10_000
"""Rows deleted in a transaction, for which other writers wait."""


class MaintenanceRepository(Repository):
    """The queries and changes of jobs and checkpoints by the maintenance task, within a session."""

    def jobs_to_delete(self) -> list[Job]:
        """Return the jobs whose deletion was requested."""
        return list(
            self._session.scalars(sa.select(Job).where(Job.deletion_requested_at.is_not(None)).order_by(Job.pk))
        )

    def delete_batch(self, job_pk: int) -> bool:
        """Delete a batch of a job's points or logs; return False when less than a batch is left."""
        return any(self._delete_oldest(table, job_pk) for table in (Point, LogChunk))

    def _delete_oldest(self, table: type[Point] | type[LogChunk], job_pk: int) -> bool:
        sequence = table.sequence
        query = sa.select(sequence).where(table.job_pk == job_pk).order_by(sequence).offset(_BATCH).limit(1)
        last = self._session.scalar(query)
        if last is None:
            return False
        # The rows of a report share a sequence number; there are at most 1,000.
        self._session.execute(sa.delete(table).where(table.job_pk == job_pk, sequence <= last))
        return True

    def delete_job(self, job_pk: int) -> None:
        """Delete a job with all of its rows."""
        # The job first: its row lock orders this after a concurrent insert of points, so that those are deleted too.
        for job_id, status in self._session.execute(
            sa.delete(Job).where(Job.pk == job_pk).returning(Job.id, Job.status)
        ):
            DependencyRepository(self._session).record_deletion(job_id, status)
        for table in (Point, DownsampledPoint):
            self._session.execute(sa.delete(table).where(table.job_pk == job_pk))

    def checkpoints_to_remove(self) -> Sequence[tuple[str, str, int | None, int]]:
        """Return the checkpoints whose files are to be removed: id, job id, uid of the job's account, step."""
        query = sa.select(Checkpoint.id, Job.id, Job.unix_uid, Checkpoint.step).join(Job, Job.pk == Checkpoint.job_pk)
        rows = self._session.execute(query.where(Checkpoint.removing))
        return [(id_, job, uid, step) for id_, job, uid, step in rows]

    def record_removal(self, checkpoint_id: str) -> None:
        """Record that the files are removed; the job is measured again."""
        statement = sa.update(Checkpoint).where(Checkpoint.id == checkpoint_id).values(removing=False)
        self._session.execute(statement)
        owner = sa.select(Checkpoint.job_pk).where(Checkpoint.id == checkpoint_id).scalar_subquery()
        self._session.execute(sa.update(Job).where(Job.pk == owner).values(measured_at=None))

    def is_to_be_removed(self, checkpoint_id: str) -> bool:
        """Whether the files are still to be removed: a run that went back may have written it again."""
        return bool(self._session.scalar(sa.select(Checkpoint.removing).where(Checkpoint.id == checkpoint_id)))

    def jobs_to_measure(self, before: datetime, limit: int) -> Sequence[tuple[int, str, int | None]]:
        """Return new and newly ended jobs, then active jobs last measured before a time: primary key, id and uid."""
        columns = sa.select(Job.pk, Job.id, Job.unix_uid)
        fresh = columns.where(Job.measured_at.is_(None), Job.deletion_requested_at.is_(None))
        rows = list(self._session.execute(fresh.order_by(Job.pk).limit(limit)))
        stale = columns.where(Job.status.in_(ACTIVE), Job.measured_at < before)
        rows += list(self._session.execute(stale.order_by(Job.measured_at).limit(limit - len(rows))))
        return [(pk, id_, uid) for pk, id_, uid in rows]

    def record_size(self, job_pk: int, size: int, now: datetime) -> None:
        """Record the bytes that a run directory uses."""
        self._session.execute(sa.update(Job).where(Job.pk == job_pk).values(disk_bytes=size, measured_at=now))

    def checkpoint_steps(self, job_pk: int) -> list[int]:
        """Return the steps of the job's checkpoints that are not marked as deleted."""
        query = sa.select(Checkpoint.step).where(Checkpoint.job_pk == job_pk, Checkpoint.deleted_at.is_(None))
        return list(self._session.scalars(query))

    def record_missing_checkpoints(self, job_pk: int, steps: Sequence[int], now: datetime) -> None:
        """Mark checkpoints as deleted whose folders were quarantined or removed by hand."""
        gone = sa.update(Checkpoint).where(Checkpoint.job_pk == job_pk, Checkpoint.step.in_(steps))
        self._session.execute(gone.values(deleted_at=now))

    def usage(self) -> Sequence[tuple[str, int, int]]:
        """Return the disk use of each user: name, number of jobs, bytes."""
        query = sa.select(Job.created_by, sa.func.count(), sa.func.coalesce(sa.func.sum(Job.disk_bytes), 0))
        rows = self._session.execute(query.group_by(Job.created_by).order_by(Job.created_by))
        return [(name, count, int(size or 0)) for name, count, size in rows]

    def running_jobs(self) -> list[Job]:
        """Return the jobs that may write to the disk."""
        return list(self._session.scalars(sa.select(Job).where(Job.status.in_(("running", "pausing")))))

    def running_job_ids(self) -> list[tuple[str, int | None]]:
        """Return the ids and uids of these jobs."""
        query = sa.select(Job.id, Job.unix_uid).where(Job.status.in_(("running", "pausing")))
        return [(id_, uid) for id_, uid in self._session.execute(query)]

    def code_digests(self) -> set[str]:
        """Return the digests of the code that jobs refer to. Reads the spec of every job."""
        digest = Job.spec["code"].as_string()
        return {value for value in self._session.scalars(sa.select(digest).distinct()) if value is not None}

    def job_ids(self) -> set[str]:
        """Return the ids of all jobs, including those whose deletion was requested."""
        return set(self._session.scalars(sa.select(Job.id)))
