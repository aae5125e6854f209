"""The SQL that finds a page of jobs among many, as driver statements.

Each filter names a stretch of one index that holds nothing but ids, in order. A page is walked along the shortest of
these stretches, and each id is looked up in the others; on Postgres, where all are long, along all of them at once.
No wide row is read but those of jobs that match.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.ids import first_job_id
from service.db.models import Job
from service.db.paging import PageRequest
from service.db.types import to_micros

_LONG = {"sqlite": 5000, "postgresql": 2000}
"""Stretches of more ids than this are all the same: walking them takes less than looking each id up."""

_OTHER_WAYS = ("enable_nestloop", "enable_hashjoin", "enable_seqscan", "enable_bitmapscan")
"""That Postgres has of joining and of reading, besides a merge of walks along indices."""

_BY_JOB = " INDEXED BY ix_job_labels_job_id_key_value"
"""A job's label: SQLite finds it in half the time where the ids, which differ, come first. It would not choose so."""

MAX_LABELS = 16
"""That a spec may have; no job has more."""


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are wanted; what is left out matches all."""

    statuses: tuple[str, ...] = ()
    name: str | None = None
    search: str | None = None
    """A part of the name, in any case, or the id."""
    created_by: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    """At this moment or later."""
    created_before: datetime | None = None
    """Earlier than this moment."""
    sweep: str | None = None
    """Of which they are members."""


class Stretch(NamedTuple):
    """The ids of an index that begin with these values."""

    table: str
    id: str
    columns: tuple[str, ...]
    values: tuple[str, ...]


class Bound(NamedTuple):
    """A limit of the ids."""

    operator: str
    id: str


class JobLists:
    """Pages within one session."""

    def __init__(self, session: Session):
        self._session = session
        self._connection = session.connection()
        self._sqlite = self._connection.dialect.name == "sqlite"
        self._long = _LONG[self._connection.dialect.name]

    def page(self, window: PageRequest, wanted: JobFilter) -> tuple[list[Job], bool]:
        """One page by id, which is the order of creation, and whether there is more."""
        if len(wanted.metadata) > MAX_LABELS:
            return [], False
        bounds, shared = _bounds(window, wanted), _stretches(wanted)
        # Each status is a stretch of its own, whose page is found by itself.
        each = [_of_jobs("status", status) for status in dict.fromkeys(wanted.statuses)]
        lengths = self._lengths([*shared, *each], bounds) if shared and len(shared) + len(each) > 1 else {}
        ids: set[str] = set()
        for chosen in [[*shared, one] for one in each] or [shared]:
            ordered = sorted(chosen, key=lambda stretch: lengths.get(stretch, 0))
            long = len(ordered) > 1 and lengths[ordered[0]] == self._long
            ids.update(self._found(ordered, bounds, window, wanted, long=long))
        if not ids:
            return [], False
        found = sorted(ids, reverse=window.descending)[: window.limit + 1]
        order = Job.id.desc() if window.descending else Job.id.asc()
        rows = list(self._session.scalars(sa.select(Job).where(Job.id.in_(found[: window.limit])).order_by(order)))
        return rows, len(found) > window.limit

    def _found(
        self,
        stretches: Sequence[Stretch],
        bounds: Sequence[Bound],
        window: PageRequest,
        wanted: JobFilter,
        *,
        long: bool,
    ) -> list[str]:
        """The ids of a page that all stretches have; `long`: each is too long to look all of its ids up in the others.

        Long ones are walked side by side, once each. SQLite can only be asked so whether there is any id at all.
        """
        if long and not self._sqlite:
            with self._merging():
                return [row[0] for row in self._run(*merged_query(stretches, bounds, window, wanted))]
        if long and not self._meet(stretches, bounds):
            return []
        query, values = page_query(stretches, bounds, window, wanted, sqlite=self._sqlite)
        return [row[0] for row in self._run(query, values)]

    def _lengths(self, stretches: Sequence[Stretch], bounds: Sequence[Bound]) -> dict[Stretch, int]:
        """How many ids each has, counted no further than need be."""
        counts, values = [], []
        for stretch in stretches:
            where, given = _within(stretch, "t", bounds)
            some = f"SELECT 1 FROM {stretch.table} t WHERE {where} LIMIT {self._long}"  # noqa: S608 (names of ours)
            counts.append(f"(SELECT COUNT(*) FROM ({some}) AS found)")  # noqa: S608
            values += given
        return dict(zip(stretches, self._run(f"SELECT {', '.join(counts)}", values).one(), strict=True))

    def _meet(self, stretches: Sequence[Stretch], bounds: Sequence[Bound]) -> bool:
        """Whether long stretches have an id in common: SQLite walks them side by side, once each, if told an order."""
        parts, values = [], []
        for stretch in stretches:
            where, given = _within(stretch, "t", bounds)
            parts.append(f"SELECT t.{stretch.id} FROM {stretch.table} t WHERE {where}")  # noqa: S608 (names of ours)
            values += given
        return self._run(" INTERSECT ".join(parts) + " ORDER BY 1 LIMIT 1", values).first() is not None

    @contextmanager
    def _merging(self) -> Iterator[None]:
        """Postgres joins by walking indices side by side. By itself it takes filters for independent, expects a page
        of matches early on, and looks each id up, for ten times as long where matches are few."""
        self._session.execute(sa.text(_switched("off")))
        yield
        self._session.execute(sa.text(_switched(None)))

    def _run(self, statement: str, values: Sequence[Any]) -> sa.CursorResult[*tuple[Any, ...]]:
        spelled = statement if self._sqlite else statement.replace("?", "%s")
        return self._connection.exec_driver_sql(spelled, tuple(values))


def page_query(
    stretches: Sequence[Stretch], bounds: Sequence[Bound], window: PageRequest, wanted: JobFilter, *, sqlite: bool
) -> tuple[str, list[Any]]:
    """The statement that finds one more id than a page has, walking the first stretch, and its values. Pure."""
    tables, conditions, values = _joined(stretches, bounds, sqlite=sqlite)
    tables.append("jobs job")
    if stretches:
        conditions.append(f"job.id = {_first(stretches)}")
    else:
        conditions += [f"job.id {bound.operator} ?" for bound in bounds]
        values += [bound.id for bound in bounds]
    rest, given = _of_one(wanted, sqlite=sqlite)
    conditions += rest
    direction = "DESC" if window.descending else "ASC"
    query = f"SELECT job.id FROM {' CROSS JOIN '.join(tables)} WHERE {' AND '.join(conditions)}"  # noqa: S608
    return f"{query} ORDER BY {_first(stretches)} {direction} LIMIT ?", [*values, *given, window.limit + 1]


def merged_query(
    stretches: Sequence[Stretch], bounds: Sequence[Bound], window: PageRequest, wanted: JobFilter
) -> tuple[str, list[Any]]:
    """The same for Postgres: first the ids that all stretches have, in order, then what the jobs themselves must be.

    OFFSET keeps the two apart, and a subquery in place of a join looks up only the jobs of ids that were found. Pure.
    """
    tables, conditions, values = _joined(stretches, bounds, sqlite=False)
    direction = "DESC" if window.descending else "ASC"
    met = f"SELECT {_first(stretches)} AS id FROM {' CROSS JOIN '.join(tables)} WHERE {' AND '.join(conditions)}"  # noqa: S608
    rest, given = _of_one(wanted, sqlite=False)
    one = f"SELECT {' AND '.join(rest)} FROM jobs job WHERE job.id = met.id"  # noqa: S608
    query = f"SELECT met.id FROM ({met} ORDER BY 1 {direction} OFFSET 0) met WHERE ({one})"  # noqa: S608
    return f"{query} ORDER BY met.id {direction} LIMIT ?", [*values, *given, window.limit + 1]


def _joined(
    stretches: Sequence[Stretch], bounds: Sequence[Bound], *, sqlite: bool
) -> tuple[list[str], list[str], list[Any]]:
    """Tables, conditions and values of a walk along the first stretch and the same ids in the others."""
    tables, conditions, values = [], [], []
    for number, stretch in enumerate(stretches):
        looked_up = sqlite and number > 0 and stretch.table == "job_labels"
        tables.append(f"{stretch.table} t{number}" + (_BY_JOB if looked_up else ""))
        where, given = _within(stretch, f"t{number}", bounds)
        conditions.append(where if number == 0 else f"{where} AND t{number}.{stretch.id} = {_first(stretches)}")
        values += given
    return tables, conditions, values


def _of_one(wanted: JobFilter, *, sqlite: bool) -> tuple[list[str], list[Any]]:
    """What only a job's row can tell, and its values."""
    values: list[Any] = []
    # Nearly every job is in the index of deletions, as not being deleted: the plus keeps SQLite from walking that.
    conditions = ["+job.deletion_requested_at IS NULL" if sqlite else "job.deletion_requested_at IS NULL"]
    for operator, moment in ((">=", wanted.created_after), ("<", wanted.created_before)):
        if moment is not None:
            conditions.append(f"job.created_at {operator} ?")
            values.append(to_micros(moment))
    if wanted.search is not None:
        conditions.append(f"(job.name {'LIKE' if sqlite else 'ILIKE'} ? ESCAPE '!' OR job.id = ?)")
        part = re.sub("([!%_])", r"!\1", wanted.search)
        values += [f"%{part}%", wanted.search]
    return conditions, values


def _switched(to: str | None) -> str:
    """For the rest of the transaction; None: as it was."""
    value = "NULL" if to is None else f"'{to}'"
    return "SELECT " + ", ".join(f"set_config('{way}', {value}, true)" for way in _OTHER_WAYS)


def _first(stretches: Sequence[Stretch]) -> str:
    return f"t0.{stretches[0].id}" if stretches else "job.id"


def _within(stretch: Stretch, alias: str, bounds: Sequence[Bound]) -> tuple[str, list[Any]]:
    conditions = [f"{alias}.{column} = ?" for column in stretch.columns]
    conditions += [f"{alias}.{stretch.id} {bound.operator} ?" for bound in bounds]
    return " AND ".join(conditions), [*stretch.values, *(bound.id for bound in bounds)]


def _of_jobs(column: str, value: str) -> Stretch:
    return Stretch("jobs", "id", (column,), (value,))


def _stretches(wanted: JobFilter) -> list[Stretch]:
    """All but the status."""
    columns = (("sweep_id", wanted.sweep), ("name", wanted.name), ("created_by", wanted.created_by))
    found = [_of_jobs(column, value) for column, value in columns if value is not None]
    return found + [Stretch("job_labels", "job_id", ("key", "value"), pair) for pair in wanted.metadata.items()]


def _bounds(window: PageRequest, wanted: JobFilter) -> list[Bound]:
    """An id tells the millisecond of creation; within that, the time itself decides."""
    found = []
    if window.after is not None:
        found.append(Bound("<" if window.descending else ">", window.after))
    if wanted.created_after is not None:
        found.append(Bound(">=", first_job_id(wanted.created_after)))
    if wanted.created_before is not None:
        found.append(Bound("<", first_job_id(wanted.created_before, after=True)))
    return found
