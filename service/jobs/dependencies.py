"""Dependencies between jobs: all SQL about them, and their meaning. A job waits for its prerequisites."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from service.core.errors import InvalidSpecError
from service.db.models import Job, JobDependency
from service.db.repository import Repository
from trainyard.contract.problems import Problem
from trainyard.contract.spec.prerequisites import Prerequisite, prerequisites_of
from trainyard.contract.wire.jobs import TERMINAL


class Dependency(NamedTuple):
    """A waiting job, and the state of a prerequisite."""

    job_pk: int
    prerequisite: Prerequisite
    status: str | None
    """None: nothing is known about it, as after the restore of a database."""
    is_deleted: bool
    owner: str | None = None
    """Who submitted the prerequisite, if it is not the user of the job: they or an administrator can retry it."""

    @property
    def is_met(self) -> bool:
        """Whether the prerequisite lets the job go on. Nobody can find out more about an unknown prerequisite."""
        return self.status is None or is_met(self.prerequisite, self.status)


def is_met(prerequisite: Prerequisite, status: str) -> bool:
    """Return whether a prerequisite in this status lets the job that waits for it go on."""
    return status in TERMINAL if prerequisite.any_end else status == "succeeded"


class DependencyRepository(Repository):
    """Dependencies within a session."""

    def add(self, jobs: Iterable[Job]) -> None:
        """Insert the dependencies that the specs of new jobs name."""
        rows = [(job, one) for job in jobs for one in prerequisites_of(job.spec.get("after", ()))]
        if not rows:
            return
        named = {one.job_id for _, one in rows}
        deleted = self._deleted(named - self._lock(named))
        for job, one in rows:
            job.has_prerequisites = True
            deleted_as = deleted.get(one.job_id)
            self._session.add(
                JobDependency(job_pk=job.pk, prerequisite_id=one.job_id, any_end=one.any_end, deleted_as=deleted_as)
            )

    def _lock(self, job_ids: Collection[str]) -> set[str]:
        """Keep jobs until the transaction ends, and return the ids that exist: `record_deletion` must see new rows."""
        query = sa.select(Job.id).where(Job.id.in_(job_ids)).order_by(Job.pk).with_for_update(read=True)
        return set(self._session.scalars(query)) if job_ids else set()

    def _deleted(self, job_ids: Iterable[str]) -> dict[str, str]:
        """Return how deleted jobs ended, as far as other jobs wait for them: a search adds jobs for days."""
        query = sa.select(JobDependency.prerequisite_id, JobDependency.deleted_as).distinct()
        query = query.where(JobDependency.prerequisite_id.in_(job_ids), JobDependency.deleted_as.is_not(None))
        return {job_id: str(status) for job_id, status in self._session.execute(query)}

    def record_deletion(self, job_id: str, status: str) -> None:
        """Record for the jobs that wait for a job how it ended, after its row was deleted."""
        of_job = sa.update(JobDependency).where(JobDependency.prerequisite_id == job_id)
        self._session.execute(of_job.values(deleted_as=status))

    def of_queued(self, jobs: Iterable[Job]) -> list[Dependency]:
        """Return the prerequisites of all queued jobs, ordered by job.

        Args:
            jobs: The unfinished jobs, loaded before, so that the result has all of them. Nothing is read if none waits.
        """
        if not any(job.has_prerequisites and job.status == "queued" for job in jobs):
            return []
        is_deleted = sa.or_(Job.pk.is_(None), Job.deletion_requested_at.is_not(None))
        waits = sa.orm.aliased(Job)
        owner = sa.func.nullif(Job.created_by, waits.created_by)
        query = (
            sa.select(JobDependency, sa.func.coalesce(Job.status, JobDependency.deleted_as), is_deleted, owner)
            .join(waits, waits.pk == JobDependency.job_pk)
            .outerjoin(Job, Job.id == JobDependency.prerequisite_id)
            .where(waits.status == "queued", waits.has_prerequisites)
            .order_by(JobDependency.job_pk, JobDependency.prerequisite_id)
        )
        return [
            Dependency(row.job_pk, Prerequisite(row.prerequisite_id, row.any_end), status, gone, of_other)
            for row, status, gone, of_other in self._session.execute(query)
        ]

    def prerequisites_of(self, job: Job) -> list[tuple[JobDependency, Job | None]]:
        """Return the prerequisites of a job, oldest first; None: it is deleted, or the caller cannot see it."""
        query = sa.select(JobDependency).where(JobDependency.job_pk == job.pk).order_by(JobDependency.prerequisite_id)
        rows = self._session.scalars(query).all()
        visible = sa.select(Job).where(
            Job.id.in_([row.prerequisite_id for row in rows]), Job.deletion_requested_at.is_(None)
        )
        jobs = {other.id: other for other in self._session.scalars(visible)}
        return [(row, jobs.get(row.prerequisite_id)) for row in rows]

    def dependents_of(self, job: Job, limit: int) -> list[tuple[JobDependency, Job]]:
        """Return the jobs that name this job, oldest first."""
        query = sa.select(JobDependency, Job).join(Job, Job.pk == JobDependency.job_pk)
        query = query.where(JobDependency.prerequisite_id == job.id, Job.deletion_requested_at.is_(None))
        rows = self._session.execute(query.order_by(Job.pk).limit(limit))
        return [(row, dependent) for row, dependent in rows]

    def of_new_job(self, after: Sequence[str]) -> list[Dependency]:
        """Return the jobs that a spec names, with the status None if a job does not exist or the caller cannot see
        it."""
        named = prerequisites_of(after)
        query = sa.select(Job.id, Job.status).where(Job.id.in_([one.job_id for one in named]))
        query = query.where(Job.deletion_requested_at.is_(None))
        statuses = {job_id: status for job_id, status in self._session.execute(query)} if named else {}
        return [Dependency(0, one, statuses.get(one.job_id), is_deleted=False) for one in named]

    def require(self, after: Sequence[str]) -> None:
        """Check that all jobs exist that a new job names, and keep them until the transaction ends.

        Raises:
            InvalidSpecError: a job does not exist, or the caller cannot see it.
        """
        self._lock({one.job_id for one in prerequisites_of(after)})
        if problems := unknown_prerequisites(self.of_new_job(after)):
            raise InvalidSpecError(problems)


def unknown_prerequisites(dependencies: Sequence[Dependency]) -> list[Problem]:
    """Return a problem for each job of a new spec that does not exist, or that the caller cannot see."""
    return [
        Problem(param=f"after.{number}", message=f"there is no job {one.prerequisite.job_id!r}; remove it")
        for number, one in enumerate(dependencies)
        if one.status is None
    ]
