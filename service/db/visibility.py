"""Which users' jobs the current request can read.

Where jobs run as their owners, a user sees no job and no data file of other users. The condition is added to every
query of the request's sessions, so that a new route cannot omit it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from service.db.models import DataFile, Job, RegisteredModel, StartEstimate, Sweep

_OWNER: ContextVar[str | None] = ContextVar("visible_owner", default=None)


def show_jobs_of(owner: str | None) -> None:
    """Restrict the sessions that this request opens from now on to the jobs of one user; None: all jobs."""
    _OWNER.set(owner)


def visible_owner() -> str | None:
    """Return the user whose jobs alone this request can read; None: all jobs."""
    return _OWNER.get()


@contextmanager
def all_jobs() -> Iterator[None]:
    """Lift the restriction in a block; its result must not reach the user unfiltered."""
    with jobs_of(None):
        yield


@contextmanager
def jobs_of(owner: str | None) -> Iterator[None]:
    """Restrict the sessions of a block to the jobs of one user; None: all jobs."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


def restrict(session: Session) -> Session:
    """Add the condition of the current request to the queries of a new session, and return the session."""
    owner = _OWNER.get()
    if owner is None:
        return session
    conditions = [
        with_loader_criteria(table, table.created_by == owner, include_aliases=True)
        for table in (DataFile, Job, RegisteredModel, StartEstimate, Sweep)
    ]

    def add_conditions(state: ORMExecuteState) -> None:
        if state.is_select and not state.is_column_load:
            state.statement = state.statement.options(*conditions)

    event.listen(session, "do_orm_execute", add_conditions)
    return session
