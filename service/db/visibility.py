"""What the current request can read.

A private project hides its jobs from all but its members and administrators. Where jobs run as their owners, a user
sees no job and no data file of other users. A project token sees nothing else. The conditions are added to
every query of the request's sessions, so that a new route cannot omit them.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import LoaderCriteriaOption, ORMExecuteState, Session, with_loader_criteria

from service.db.models import (
    DataFile,
    Job,
    ModelVersion,
    Project,
    ProjectMember,
    RegisteredModel,
    SavedView,
    StartEstimate,
    Sweep,
)

_JOBS: Any = Job.__table__
_PROJECTS: Any = Project.__table__
_MEMBERS: Any = ProjectMember.__table__
_VERSIONS: Any = ModelVersion.__table__
_JOB_ID = re.compile(r"job_[0-9a-z]{26}")
_NOBODY = ""
"""The name of no project: labels are not empty."""


@dataclass(frozen=True)
class Reader:
    """A user whose view of jobs is restricted. Administrators have none, nor does the service itself."""

    name: str
    own_only: bool = False
    """Whether jobs run as their owners, so that users see only their own jobs."""
    project: str | None = None
    """The project for which alone the token is valid."""

    def sees(self, owner: str, project: str | None, members: Collection[str] | None) -> bool:
        """Return whether the user sees a job.

        Args:
            members: Who sees the jobs of its project; None: everybody.
        """
        if self.own_only and owner != self.name:
            return False
        if self.project is not None and project != self.project:
            return False
        return members is None or self.name in members


_READER: ContextVar[Reader | None] = ContextVar("reader", default=None)


def show_jobs_to(reader: Reader | None) -> None:
    """Restrict the sessions that this request opens from now on to what a user sees; None: no restriction."""
    _READER.set(reader)


def present_reader() -> Reader | None:
    """Return the user to whose view this request is restricted; None: it is not restricted."""
    return _READER.get()


@contextmanager
def all_jobs() -> Iterator[None]:
    """Lift the restriction in a block; its result must not reach the user unfiltered."""
    with jobs_of(None):
        yield


@contextmanager
def jobs_of(reader: Reader | None) -> Iterator[None]:
    """Restrict the sessions of a block to what a user sees; None: no restriction."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


def restrict(session: Session) -> Session:
    """Add the conditions of the current request to the queries of a new session, and return the session."""
    reader = _READER.get()
    if reader is None:
        return session
    criteria = _criteria(reader)

    def add_conditions(state: ORMExecuteState) -> None:
        if state.is_select and not state.is_column_load:
            state.statement = state.statement.options(*criteria)

    event.listen(session, "do_orm_execute", add_conditions)
    return session


def shown_pks(reader: Reader, job_pk: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on the key of a job, by indexes of the jobs that meet them or of those that do not."""
    pks = sa.select(_JOBS.c.pk)
    conditions = [job_pk.not_in(pks.where(_JOBS.c.project.in_(_hidden_projects(reader))))]
    if reader.own_only:
        conditions.append(job_pk.in_(pks.where(_JOBS.c.created_by == reader.name)))
    if reader.project is not None:
        conditions.append(job_pk.in_(pks.where(_JOBS.c.project == reader.project)))
    return conditions


def visible_ids(session: Session, job_ids: Collection[str]) -> set[str]:
    """Return the ids of the jobs among these that the session's user sees, deleted ones included."""
    return set(session.scalars(sa.select(Job.id).where(Job.id.in_(job_ids)))) if job_ids else set()


def readable_jobs(session: Session, document: Any) -> tuple[str, ...] | None:
    """Return the jobs that a document names and the caller sees; None if the caller sees the jobs of all projects."""
    reader = _READER.get()
    if reader is None:
        return None
    if reader.project is None and session.execute(_hidden_projects(reader).limit(1)).first() is None:
        return None
    return tuple(sorted(visible_ids(session, set(_JOB_ID.findall(str(document))))))


def _hidden_projects(reader: Reader) -> sa.Select[Any]:
    """Return the query for the names of the private projects of which the user is not a member."""
    own = sa.select(_MEMBERS.c.project).where(_MEMBERS.c.member == reader.name)
    return sa.select(_PROJECTS.c.name).where(_PROJECTS.c.is_private, _PROJECTS.c.name.not_in(own))


def _is_shown(reader: Reader, project: Any) -> sa.ColumnElement[bool]:
    """Return the condition on the project of a row, which may be null."""
    shown: sa.ColumnElement[bool] = sa.func.coalesce(project, _NOBODY).not_in(_hidden_projects(reader))
    return shown if reader.project is None else sa.and_(shown, project == reader.project)


@lru_cache(maxsize=1024)
def _criteria(reader: Reader) -> tuple[LoaderCriteriaOption, ...]:
    hidden_jobs = sa.select(_JOBS.c.id).where(_JOBS.c.project.in_(_hidden_projects(reader)))
    version = _VERSIONS.c.job_id.not_in(hidden_jobs)
    if reader.project is not None:
        version &= _VERSIONS.c.job_id.in_(sa.select(_JOBS.c.id).where(_JOBS.c.project == reader.project))
    hidden_sweeps = sa.select(_JOBS.c.sweep_id).where(
        _JOBS.c.project.in_(_hidden_projects(reader)), _JOBS.c.sweep_id.is_not(None)
    )
    hidden_models = sa.select(_VERSIONS.c.model).where(_VERSIONS.c.job_id.in_(hidden_jobs))
    shown_models = RegisteredModel.name.in_(sa.select(_VERSIONS.c.model).where(version))
    # A model without versions is shown, and a model that also has versions of other jobs.
    models = RegisteredModel.name.not_in(hidden_models) | shown_models
    conditions: list[tuple[Any, Any]] = [
        (Job, _is_shown(reader, Job.project)),
        (Sweep, sa.and_(_is_shown(reader, Sweep.project), Sweep.id.not_in(hidden_sweeps))),
        (ModelVersion, ModelVersion.job_id.not_in(hidden_jobs)),
        (RegisteredModel, models if reader.project is None else shown_models),
        (Project, Project.name.not_in(_hidden_projects(reader))),
        (SavedView, _is_shown(reader, SavedView.project)),
    ]
    if reader.project is not None:
        own_jobs = sa.select(_JOBS.c.id).where(_JOBS.c.project == reader.project)
        conditions += [(Project, Project.name == reader.project), (ModelVersion, ModelVersion.job_id.in_(own_jobs))]
        conditions.append((DataFile, sa.false()))
    if reader.own_only:
        owned: tuple[Any, ...] = (DataFile, Job, RegisteredModel, StartEstimate, Sweep)
        conditions += [(table, table.created_by == reader.name) for table in owned]
    return tuple(with_loader_criteria(table, condition, include_aliases=True) for table, condition in conditions)
