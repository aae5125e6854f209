"""Pages of the runs table: jobs that match a query, in the order of any value, with the values of chosen columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.errors import InvalidRequestError
from service.db.engine import Database
from service.db.models import Attempt, Job, JobValue, ValueKey
from service.db.paging import PageRequest
from service.db.visibility import present_reader
from service.jobs.listing import JobFilter, read_page
from service.jobs.repository import JobRepository
from service.jobs.schemas import job_resource, page_of
from service.jobs.table.conditions import ConditionBuilder
from service.jobs.table.divergence import has_diverged
from service.jobs.table.keys import (
    ColumnKey,
    ResolvedKey,
    TagKey,
    ValueRef,
    candidates,
    has_order,
    is_unknown,
    joined_columns,
    resolve_key,
    unknown_key,
    unsortable_key,
)
from service.jobs.table.pages import TablePages, TableQuery
from service.jobs.table.value_repository import ValueRepository
from service.jobs.table.value_types import spec_fields
from service.jobs.table.values import Named, StoredValue
from trainyard.contract.job_query import (
    And,
    Comparison,
    Key,
    Membership,
    Node,
    Or,
    QueryError,
    keys_of,
    parse_key,
    parse_query,
)
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.pages import Page

MAX_COLUMNS = 100
_MAX_SUGGESTED = 5000
"""Maximum number of known keys that are searched for the nearest to an unknown key."""
_CREATED = Key("created")
_BRIEF: Mapping[str, Any] = {"spec": {}, "metrics": {}, "parameters": {}, "notes": None, "error": None, "origin": None}
"""The values in a brief list of the fields that it leaves out."""


@dataclass(frozen=True)
class TableRequest:
    """The request for a list of jobs."""

    where: str = ""
    sort: str = ""
    """A key; with `-` before it, descending. Empty: by creation, in the direction of the page."""
    columns: tuple[str, ...] = ()
    archived: bool | None = False
    """Whether archived jobs are shown alone; None: all jobs."""
    brief: bool = False
    """Whether specs, metrics and parameters are left out."""
    job_filter: JobFilter = field(default_factory=JobFilter)

    @property
    def is_plain(self) -> bool:
        """Whether the list needs no values of jobs."""
        return not self.where.strip() and not self.sort and not self.columns


def list_table(
    database: Database, page: PageRequest, request: TableRequest, runs: Path, now: datetime
) -> Page[JobResource]:
    """Return a page of jobs in the requested form; see `read_table`."""
    if request.is_plain and request.archived is not None:
        job_filter = replace(request.job_filter, archived=request.archived)
        page_of_jobs = read_page(database, page, job_filter, runs, now)
    elif request.is_plain:
        page_of_jobs = read_page(database, page, request.job_filter, runs, now)
    else:
        return read_table(database, page, request, runs, now)
    if not request.brief:
        return page_of_jobs
    return page_of_jobs.model_copy(update={"data": [job.model_copy(update=_BRIEF) for job in page_of_jobs.data]})


def read_table(
    database: Database, page: PageRequest, request: TableRequest, runs: Path, now: datetime
) -> Page[JobResource]:
    """Return a page of the jobs that match, with the values of the columns.

    Raises:
        InvalidRequestError: the query, the sort or a column cannot be read, or has an unknown key.
        NotFoundError: the job `page.after` does not exist.
    """
    where = _combine(_parsed(lambda: parse_query(request.where), "where"), request.job_filter)
    sort, descending = _sort_of(request.sort, descending=page.descending)
    columns = {text: _parsed(lambda text=text: parse_key(text), "columns") for text in request.columns}
    with database.read() as session:
        keys = _resolve(
            session, {"where": list(keys_of(where)) if where else [], "sort": [sort], "columns": [*columns.values()]}
        )
        sort_key = keys[sort]
        if isinstance(sort_key, TagKey) or (isinstance(sort_key, ColumnKey) and not has_order(sort_key)):
            raise InvalidRequestError(str(unsortable_key(sort, ())), param="sort", code="unknown_key")
        if sort_key == ColumnKey("age"):
            sort_key, descending = ColumnKey("created"), not descending
        # A condition on `archived` decides by itself.
        named = where is not None and any(keys[key] == ColumnKey("archived") for key in keys_of(where))
        query = TableQuery(where, sort_key, None if named else request.archived)
        builder = ConditionBuilder(keys, now)
        if where is not None:  # a page may be found without some of its conditions, whose errors are stated as well
            _parsed(lambda: builder.build(where, Job.pk, Job), "where")
        pages = TablePages(session, query, builder)
        pks, has_more = pages.page(replace(page, descending=descending))
        jobs = _load(session, pks)
        attempts = JobRepository(session, now).current_attempts(jobs)
        values = _column_values(session, jobs, {text: keys[key] for text, key in columns.items()}, now)
    return page_of(
        jobs,
        has_more,
        lambda job: _resource(job, attempts.get(job.id), runs, now, values.get(job.pk), request),
        lambda job: job.id,
    )


def _resource(
    job: Job, attempt: Any, runs: Path, now: datetime, values: dict[str, Any] | None, request: TableRequest
) -> JobResource:
    resource = job_resource(job, attempt, RunLayout(runs / job.id), now, in_list=True)
    update: dict[str, Any] = {"values": values or {}} if request.columns else {}
    if request.brief:
        update |= _BRIEF
    return resource.model_copy(update=update)


def _sort_of(text: str, *, descending: bool) -> tuple[Key, bool]:
    if not text:
        return _CREATED, descending
    key = _parsed(lambda: parse_key(text.removeprefix("-")), "sort")
    return key, text.startswith("-")


def _parsed(parse: Any, param: str) -> Any:
    try:
        return parse()
    except QueryError as error:
        raise InvalidRequestError(str(error), param=param, code="invalid_query") from None


def _combine(where: Node | None, job_filter: JobFilter) -> Node | None:
    nodes = [*_filter_nodes(job_filter), *([] if where is None else [where])]
    return None if not nodes else nodes[0] if len(nodes) == 1 else And(tuple(nodes))


def _filter_nodes(job_filter: JobFilter) -> Iterator[Node]:
    """Yield the conditions of a filter as conditions of a query."""
    if job_filter.statuses:
        yield Membership(Key("status"), job_filter.statuses)
    columns = {"name": job_filter.name, "user": job_filter.created_by, "project": job_filter.project}
    for name, value in {**columns, "sweep_id": job_filter.sweep}.items():
        if value is not None:
            yield Comparison(Key(name), "=", value)
    if job_filter.search is not None:
        parts = tuple(Comparison(Key(key), "~", job_filter.search) for key in ("name", "user"))
        yield Or((*parts, Comparison(Key("id"), "=", job_filter.search)))
    for kind, pairs in (("spec.metadata", job_filter.metadata), ("parameters", job_filter.parameters)):
        for name, value in pairs.items():
            yield Comparison(Key(f"{kind}.{name}"), "=", value)
    if job_filter.created_after is not None:
        yield Comparison(Key("created"), ">=", job_filter.created_after.isoformat())
    if job_filter.created_before is not None:
        yield Comparison(Key("created"), "<", job_filter.created_before.isoformat())


def _resolve(session: Session, keys: Mapping[str, Sequence[Key]]) -> dict[Key, ResolvedKey]:
    """Return the resolved form of each key. `keys` has the keys of each request parameter."""
    possible = [named for of_param in keys.values() for key in of_param for named in candidates(key)]
    numbers = _visible(session, ValueRepository(session).key_numbers(possible))
    resolved: dict[Key, ResolvedKey] = {}
    for param, of_param in keys.items():
        for key in of_param:
            resolved_key = resolve_key(key, numbers, spec_fields())
            if param == "columns" and "," in key.name and is_unknown(resolved_key):
                raise InvalidRequestError(str(joined_columns(key)), param=param, code="unknown_key")
            if resolved_key is None:
                describe = unsortable_key if param == "sort" else unknown_key
                error = describe(key, {*spec_fields(), *known_names(session)})
                raise InvalidRequestError(str(error), param=param, code="unknown_key")
            resolved[key] = resolved_key
    return resolved


def _visible(session: Session, numbers: Mapping[Named, int]) -> dict[Named, int]:
    """Return the keys of which a job that the caller can see has a value."""
    if present_reader() is None:
        return dict(numbers)
    shown = sa.exists().where(JobValue.key_pk == ValueKey.pk, JobValue.job_pk == Job.pk)
    query = sa.select(ValueKey.pk).where(ValueKey.pk.in_(numbers.values()), shown)
    visible = set(session.scalars(query))
    return {named: pk for named, pk in numbers.items() if pk in visible}


def known_names(session: Session) -> list[str]:
    """Return the names of keys that have a value of a job that the caller can see, without a prefix."""
    query = sa.select(ValueKey.name).where(ValueKey.kind.in_(("spec", "parameter", "metric")))
    if present_reader() is not None:
        query = query.where(sa.exists().where(JobValue.key_pk == ValueKey.pk, JobValue.job_pk == Job.pk))
    return list(session.scalars(query.limit(_MAX_SUGGESTED)))


def _load(session: Session, pks: Sequence[int]) -> list[Job]:
    """Return these jobs in this order."""
    by_pk = {job.pk: job for job in session.scalars(sa.select(Job).where(Job.pk.in_(pks)))}
    return [by_pk[pk] for pk in pks if pk in by_pk]


def _column_values(
    session: Session, jobs: Sequence[Job], columns: Mapping[str, ResolvedKey], now: datetime
) -> dict[int, dict[str, Any]]:
    """Return the values of the columns by job."""
    refs = {key.pk for key in columns.values() if isinstance(key, ValueRef) and key.pk is not None}
    stored = ValueRepository(session).read([job.pk for job in jobs], refs) if refs else {}
    values = {job.pk: {text: _value(job, key, stored, now) for text, key in columns.items()} for job in jobs}
    flags = [text for text, key in columns.items() if key == ColumnKey("diverged")]
    if flags:
        query = sa.select(Job.pk).where(Job.pk.in_(values), has_diverged(Job))
        diverged = set(session.scalars(query))
        for pk, of_job in values.items():
            of_job |= dict.fromkeys(flags, pk in diverged)
    if nodes := [text for text, key in columns.items() if key == ColumnKey("node")]:
        last = sa.select(Job.pk, Attempt.nodes).join(Attempt, Attempt.id == Job.attempt_id).where(Job.pk.in_(values))
        for pk, names in session.execute(last):
            values[pk] |= dict.fromkeys(nodes, ", ".join(names) or None)
    return values


def _value(job: Job, key: ResolvedKey, stored: Mapping[tuple[int, int], StoredValue], now: datetime) -> Any:
    if isinstance(key, TagKey):
        return ", ".join(sorted((job.parameters or {}).get("tags", {}))) or None
    if isinstance(key, ValueRef):
        value = None if key.pk is None else stored.get((job.pk, key.pk))
        return None if value is None else value.text if value.number is None else _plain(value.number)
    if key.name == "runtime":
        return None if job.started_at is None else ((job.finished_at or now) - job.started_at).total_seconds()
    if key.name == "step":
        return (job.progress or {}).get("step")
    if key.name == "age":
        return (now - job.created_at).total_seconds()
    texts = {"id": job.id, "name": job.name, "project": job.project, "status": job.status}
    texts |= {"reason": job.status_reason, "user": job.created_by}
    texts |= {"sweep": job.sweep_id, "archived": job.archived_at is not None}  # type: ignore[dict-item]
    if key.name in ("error", "notes"):
        return _long_text(job, key.name)
    times = {"created": job.created_at, "started": job.started_at, "finished": job.finished_at}
    time = times.get(key.name)
    return texts[key.name] if key.name in texts else None if time is None else time.isoformat().replace("+00:00", "Z")


def _long_text(job: Job, name: str) -> str | None:
    if name == "error":
        return job.status_message or None if job.status == "failed" else None
    notes = (job.parameters or {}).get("notes")
    return notes[1] or None if notes else None


def _plain(number: float) -> float | int:
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
