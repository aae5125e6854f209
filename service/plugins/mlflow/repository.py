"""All SQL of MLflow's searches: the number of statements does not depend on the number of runs."""

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import aliased, defer

from service.db.models import DownsampledPoint, Execution, Job, JobKey, MetricKey, Point, Sweep
from service.db.paging import PageRequest, fetch_page
from service.db.repository import Repository
from service.jobs.listing import JobFilter, filtered_query

_ROWS_PER_FETCH = 50

Newest = dict[int, dict[str, tuple[int, datetime]]]
"""Step and time of the newest point, by job and metric."""


@dataclass(frozen=True)
class RunScan:
    """Selects jobs by indexed columns, in the order of their ids."""

    job_filter: JobFilter
    sweeps: Collection[str]
    default: bool
    """Whether jobs of no sweep are included."""
    run_ids: Collection[str] | None
    """Ids of runs; None: all jobs."""
    after: str | None
    descending: bool
    limit: int


class MlflowRepository(Repository):
    """Runs and experiments within a session."""

    def scan(self, scan: RunScan) -> Generator[Job]:
        """Yield the jobs in order; jobs that the caller does not read are not loaded."""
        query, key = filtered_query(self._session, scan.job_filter)
        of_no_sweep = Job.sweep_id.is_(None) if scan.default else sa.false()
        query = query.where(sa.or_(Job.sweep_id.in_(scan.sweeps), of_no_sweep) if scan.sweeps else of_no_sweep)
        if scan.run_ids is not None:
            query = query.where(Job.id.in_(scan.run_ids))
        if scan.after is not None:
            query = query.where(key < scan.after if scan.descending else key > scan.after)
        query = query.order_by(key.desc() if scan.descending else key.asc()).limit(scan.limit)
        rows = self._session.scalars(query.execution_options(yield_per=_ROWS_PER_FETCH))
        try:
            yield from rows
        finally:
            rows.close()

    def newest_points(self, jobs: Sequence[Job]) -> Newest:
        """Return step and time of each metric's newest visible point; if two executions have a point, the later
        execution's counts."""
        newest: Newest = {}
        pks = [job.pk for job in jobs if job.latest]
        if pks:
            self._add_newest(newest, pks, Point)
        # Retention deletes the points of old jobs, and leaves the samples.
        if without := [pk for pk in pks if pk not in newest]:
            self._add_newest(newest, without, DownsampledPoint)
        return newest

    def _add_newest(self, newest: Newest, job_pks: Sequence[int], table: type[Point | DownsampledPoint]) -> None:
        point, other = aliased(table), aliased(table)
        resumed_before = sa.exists().where(
            Execution.job_pk == other.job_pk,
            Execution.number > other.execution,
            Execution.resumed_from_step < other.step,
        )
        steps = sa.select(other.step).where(other.job_pk == JobKey.job_pk, other.key_pk == JobKey.key_pk)
        last = steps.where(~resumed_before).order_by(other.step.desc()).limit(1).correlate(JobKey).scalar_subquery()
        of_series = sa.and_(point.job_pk == JobKey.job_pk, point.key_pk == JobKey.key_pk, point.step == last)
        query = (
            sa.select(JobKey.job_pk, MetricKey.name, point.step, point.time)
            .join(MetricKey, MetricKey.pk == JobKey.key_pk)
            .join(point, of_series)
            .where(JobKey.job_pk.in_(job_pks))
            .order_by(point.execution)
        )
        for job_pk, name, step, time in self._session.execute(query):
            newest.setdefault(job_pk, {})[name] = (step, time)

    def sweeps(self, page: PageRequest) -> tuple[list[Sweep], bool]:
        """Return a page of sweeps, without their members, and whether more follow."""
        return fetch_page(self._session, _SWEEPS, Sweep.id, page)

    def sweep(self, sweep_id: str) -> Sweep | None:
        return self._session.scalar(_SWEEPS.where(Sweep.id == sweep_id))

    def newest_sweep(self, name: str) -> Sweep | None:
        """Return the newest sweep with a name; several may have it."""
        return self._session.scalar(_SWEEPS.where(Sweep.name == name).order_by(Sweep.id.desc()).limit(1))


_SWEEPS = sa.select(Sweep).options(defer(Sweep.members, raiseload=True))
