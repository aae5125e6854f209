"""Reads of jobs: one job, or a page that matches a filter.

Every filter has an index that ends with the id, by which pages are ordered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.core.ids import first_job_id
from service.db.engine import Database
from service.db.models import Job, JobLabel, JobParameter
from service.db.paging import PageRequest, fetch_page
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource, page_of
from trainyard.contract.layout import RunLayout
from trainyard.contract.parameter_text import index_text
from trainyard.contract.spec.training_spec import MAX_LABELS
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.pages import Page

_MAX_STEM = 110
"""Characters of a name that a number follows."""
_MAX_COPIES = 200


@dataclass(frozen=True)
class JobFilter:
    """Conditions that a job must meet; a condition that is left out matches every job."""

    statuses: tuple[str, ...] = ()
    name: str | None = None
    search: str | None = None
    """A part of the name, ignoring case, or the id."""
    created_by: str | None = None
    project: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Reported parameters; values are compared as `index_text` returns them."""
    created_after: datetime | None = None
    """Inclusive."""
    created_before: datetime | None = None
    """Exclusive."""
    sweep: str | None = None
    """A sweep id."""
    archived: bool | None = None
    """True: only archived jobs match. False: only other jobs. None: all jobs."""


def read_job(database: Database, job_id: str, runs: Path, now: datetime) -> JobResource:
    """Return a job with its current attempt. Raises NotFoundError."""
    with database.read() as session:
        repository = JobRepository(session, now)
        job = repository.get(job_id)
        attempt = repository.current_attempts([job]).get(job.id)
    return job_resource(job, attempt, RunLayout(runs / job.id), now)


def read_member(database: Database, sweep_id: str, job_id: str, now: datetime) -> tuple[int, dict[str, Any]] | None:
    """Return the number of a sweep's member and the values that it changes; None if the sweep does not list the job."""
    with database.read() as session:
        return JobRepository(session, now).member(sweep_id, job_id)


def free_name(database: Database, name: str, now: datetime) -> str:
    """Return a name for a copy of a job, which no job has: `run-2` of `run`, and `run-3` of `run-2` if `run` exists."""
    with database.read() as session:
        jobs = JobRepository(session, now)
        stem, dash, number = name.rpartition("-")
        base = stem if dash and number.isdecimal() and jobs.existing_names([stem]) else name
        names = [f"{base[:_MAX_STEM]}-{number}" for number in range(2, _MAX_COPIES)]
        taken = jobs.existing_names(names)
    return next((one for one in names if one not in taken), name)


def read_page(
    database: Database, page: PageRequest, job_filter: JobFilter, runs: Path, now: datetime
) -> Page[JobResource]:
    """Return a page of the jobs that match the filter, with their current attempts."""
    with database.read() as session:
        jobs, has_more = list_page(session, page, job_filter)
        attempts = JobRepository(session, now).current_attempts(jobs)
    return page_of(
        jobs,
        has_more,
        lambda job: job_resource(job, attempts.get(job.id), RunLayout(runs / job.id), now, in_list=True),
        lambda job: job.id,
    )


def list_page(session: Session, page: PageRequest, job_filter: JobFilter) -> tuple[list[Job], bool]:
    """Return a page of the matching jobs by id, which is the order of creation, and whether more follow."""
    if len(job_filter.metadata) + len(job_filter.parameters) > MAX_LABELS:
        return [], False
    if len(job_filter.statuses) <= 1:
        return fetch_page(session, *filtered_query(session, job_filter), page)
    # One query per status reads each from its index, in order; `status IN (...)` would sort all of their jobs.
    jobs: list[Job] = []
    more_follow = False
    for status in sorted(set(job_filter.statuses)):
        query, key = filtered_query(session, replace(job_filter, statuses=(status,)))
        rows, more = fetch_page(session, query, key, page)
        jobs += rows
        more_follow |= more
    jobs.sort(key=lambda job: job.id, reverse=page.descending)
    return jobs[: page.limit], more_follow or len(jobs) > page.limit


def filtered_query(session: Session, job_filter: JobFilter) -> tuple[sa.Select[Any], InstrumentedAttribute[str]]:
    """Return the query of the jobs that match, and the column with the job's id by which its index is ordered."""
    postgres = session.get_bind().dialect.name == "postgresql"
    query = sa.select(Job).where(Job.deletion_requested_at.is_(None))
    for column, value in (
        (Job.name, job_filter.name),
        (Job.created_by, job_filter.created_by),
        (Job.project, job_filter.project),
        (Job.sweep_id, job_filter.sweep),
    ):
        if value is not None:
            query = query.where(column == value)
    if job_filter.archived is not None:
        archived = Job.archived_at.is_not(None) if job_filter.archived else Job.archived_at.is_(None)
        query = query.where(archived)
    has_pairs = bool(job_filter.metadata or job_filter.parameters)
    # A second alias lets Postgres join the indexes of labels and status before it reads any row of `jobs`.
    status = aliased(Job) if postgres and has_pairs and job_filter.statuses else Job
    if status is not Job:
        query = query.join(status, status.id == Job.id)
    if job_filter.statuses:
        query = query.where(status.status.in_(job_filter.statuses))
    pairs: list[tuple[Any, str, str]] = [(aliased(JobLabel), *item) for item in job_filter.metadata.items()]
    pairs += [(aliased(JobParameter), name, index_text(text)) for name, text in job_filter.parameters.items()]
    for row, name, value in pairs:
        query = query.join(row, sa.and_(row.job_id == Job.id, row.key == name, row.value == value))
    key = pairs[0][0].job_id if pairs else Job.id
    if job_filter.search is not None:
        columns = (Job.name, Job.created_by)
        parts = (column.icontains(job_filter.search, autoescape=True) for column in columns)
        query = query.where(sa.or_(*parts, Job.id == job_filter.search))
    # The id holds the millisecond of creation; within that, `created_at` decides.
    if job_filter.created_after is not None:
        first = first_job_id(job_filter.created_after)
        query = query.where(key >= first, Job.created_at >= job_filter.created_after)
    if job_filter.created_before is not None:
        end = first_job_id(job_filter.created_before, after=True)
        query = query.where(key < end, Job.created_at < job_filter.created_before)
    return query, key
