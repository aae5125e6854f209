"""All SQL that finds the jobs of a page of the runs table.

A page is read from the index of its sort key, whose rows are in order, and each row is checked against the query. If a
condition alone leaves few jobs, they are read by its own index and sorted here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from service.core.errors import NotFoundError
from service.db.models import Job, JobValue, ValueKey
from service.db.paging import PageRequest
from service.db.visibility import present_reader, shown_pks
from service.jobs.table.conditions import (
    INDEXED_COLUMNS,
    Condition,
    ConditionBuilder,
    column_of,
    conjuncts,
    is_equality,
)
from service.jobs.table.keys import ColumnKey, TagKey, ValueRef
from service.jobs.table.value_types import as_text
from trainyard.contract.job_query import Comparison, Exists, Membership, Node

FEW = 4000
"""Jobs that are sorted here."""
_ENOUGH = 200
"""Once a condition leaves at most this many jobs, no smaller condition is looked for."""
_FIRST = 1000
"""The first rows in order, which are each checked before the indexes of the conditions are used."""
_RANGES = ("=", "<", "<=", ">", ">=")

Phase = Literal["number", "text", "missing"]
Position = tuple[Phase, Any, int]
"""Where a job is in the order: its value and its key. Numbers are before texts, and jobs without a value are last."""


@dataclass(frozen=True)
class TableQuery:
    """Which jobs are shown, and in which order."""

    where: Node | None
    sort: ColumnKey | ValueRef
    archived: bool | None = False
    """Whether archived jobs are shown alone; None: all jobs."""


class TablePages:
    """Finds pages within a session."""

    def __init__(self, session: Session, query: TableQuery, builder: ConditionBuilder):
        self._session = session
        self._query = query
        self._builder = builder
        self._conjuncts = conjuncts(query.where)

    def page(self, request: PageRequest) -> tuple[list[int], bool]:
        """Return the keys of the jobs of a page in order, and whether more follow.

        Raises:
            NotFoundError: the job `request.after` does not exist.
        """
        after = None if request.after is None else self._position(request.after)
        few = self._few()
        matching = self._sorted(few, after, request) if few is not None else self._scan(after, request)
        pks = []
        for pk in matching:
            pks.append(pk)
            if len(pks) > request.limit:
                break
        return pks[: request.limit], len(pks) > request.limit

    # -- conditions --------------------------------------------------------------------------------------------------

    def _shown(self, job_pk: Any) -> list[Condition]:
        """Return the conditions that every list has, by indexes of the few jobs that do not meet them.

        A look at each job's row would cost more than all other conditions.
        """
        conditions: list[Condition] = [job_pk.not_in(_pks(lambda job: job.deletion_requested_at.is_not(None)))]
        if (reader := present_reader()) is not None:
            conditions += shown_pks(reader, job_pk)
        if self._query.archived is not None:
            archived = _pks(lambda job: job.archived_at.is_not(None))
            conditions.append(job_pk.in_(archived) if self._query.archived else job_pk.not_in(archived))
        return conditions

    def _matching(
        self, builder: ConditionBuilder, job_pk: Any, *, without: Sequence[Node] = (), job: Any = None
    ) -> list[Condition]:
        """Return the conditions of the query, for the job of a row."""
        return [builder.build(node, job_pk, job) for node in self._conjuncts if node not in without]

    # -- few jobs, sorted here ---------------------------------------------------------------------------------------

    def _few(self) -> list[int] | None:
        """Return the jobs of the condition that leaves the fewest, if those are few."""
        best: list[int] | None = None
        for query in self._by_index():
            pks = list(self._session.scalars(query.limit(FEW + 1)))
            if len(pks) <= FEW and (best is None or len(pks) < len(best)):
                best = pks
            if best is not None and len(best) <= _ENOUGH:
                return best
        return best

    def _by_index(self) -> Iterator[sa.Select[Any]]:
        """Yield a query for the jobs of each key's conditions, as far as an index has them."""
        ranges: dict[ValueRef, list[Condition]] = {}
        for node in self._conjuncts:
            if not isinstance(node, Comparison | Membership | Exists):
                continue
            key = self._builder.keys[node.key]
            if isinstance(key, ColumnKey):
                if key.name in INDEXED_COLUMNS and is_equality(node):
                    yield sa.select(Job.pk).where(self._builder.of_column(node, key.name))
            elif isinstance(key, TagKey):
                if isinstance(node, Comparison) and node.operator == "=":
                    tag = sa.select(ValueKey.pk).where(ValueKey.kind == "tag", ValueKey.name == as_text(node.value))
                    yield sa.select(JobValue.job_pk).where(JobValue.key_pk == tag.scalar_subquery())
            elif isinstance(node, Exists) or is_equality(node) or getattr(node, "operator", "") in _RANGES:
                ranges.setdefault(key, []).append(self._builder.of_value(node, JobValue, key))
        for conditions in ranges.values():
            yield sa.select(JobValue.job_pk).where(*conditions)

    def _sorted(self, few: Sequence[int], after: Position | None, request: PageRequest) -> Iterator[int]:
        """Yield the jobs among these that match, in order."""
        positions: list[Position] = []
        for start in range(0, len(few), 1000):
            query = self._with_sort_value().where(Job.pk.in_(_literal(few[start : start + 1000])), *self._shown(Job.pk))
            query = query.where(*self._matching(self._builder, Job.pk, job=Job))
            positions += [self._position_of(*row) for row in self._session.execute(query)]
        for phase in ("number", "text", "missing"):
            of_phase = [(each[1], each[2]) for each in positions if each[0] == phase]
            if after is not None and _phase_number(after[0]) > _phase_number(phase):
                continue
            for value, pk in sorted(of_phase, reverse=request.descending):
                beyond = (value, pk) < after[1:] if after and request.descending else after and (value, pk) > after[1:]
                if after is None or after[0] != phase or beyond:
                    yield pk

    # -- a scan of the order ------------------------------------------------------------------------------------------

    def _scan(self, after: Position | None, request: PageRequest) -> Iterator[int]:
        """Yield the matching jobs in order. A phase is queried only after the caller has read the phases before it."""
        left = request.limit + 1
        for phase in ("number", "text", "missing"):
            if after is not None and _phase_number(after[0]) > _phase_number(phase):
                continue
            start = after if after is not None and after[0] == phase else None
            pks = self._scan_phase(phase, start, left, descending=request.descending)
            yield from pks
            left -= len(pks)
            if left <= 0:
                return

    def _scan_phase(self, phase: Phase, after: Position | None, count: int, *, descending: bool) -> list[int]:
        """Return the next jobs of a phase: from its first rows if they suffice, else from all its rows."""
        order = self._order(phase, after, descending=descending)
        if order is None:
            return []
        query, job_pk, without = order
        if len(without) < len(self._conjuncts):
            first = list(self._session.scalars(query.limit(_FIRST)))
            pks = self._matching_of(first, without)[:count]
            if len(pks) >= count or len(first) < _FIRST:
                return pks
        sets = replace(self._builder, as_sets=True)
        query = query.where(*self._matching(sets, job_pk, without=without, job=Job if job_pk is Job.pk else None))
        return list(self._session.scalars(query.where(*self._shown(job_pk)).limit(count)))

    def _matching_of(self, pks: Sequence[int], without: Sequence[Node]) -> list[int]:
        """Return the matching jobs among these, in the same order."""
        matching = self._matching(self._builder, Job.pk, without=without, job=Job)
        query = sa.select(Job.pk).where(Job.pk.in_(_literal(pks)), *self._shown(Job.pk), *matching)
        remaining = set(self._session.scalars(query))
        return [pk for pk in pks if pk in remaining]

    def _order(
        self, phase: Phase, after: Position | None, *, descending: bool
    ) -> tuple[sa.Select[Any], Any, Sequence[Node]] | None:
        """Return the rows of a phase in order, the column with their job, and the conditions that they meet already."""
        sort = self._query.sort
        if isinstance(sort, ColumnKey):
            query = self._column_query(
                column_of(sort.name), sort.name == "created", phase, after, descending=descending
            )
            return None if query is None else (query, Job.pk, ())
        own = [node for node in self._conjuncts if self._is_on(node, sort)]
        if phase == "missing":
            return None if own else (self._missing_query(sort, after, descending=descending), Job.pk, ())
        if sort.pk is None:
            return None
        row: Any = JobValue
        value = row.number if phase == "number" else row.text
        conditions = [self._builder.of_value(node, row, sort) for node in own]  # type: ignore[arg-type]
        query = sa.select(row.job_pk).where(row.key_pk == sort.pk, value.is_not(None), *conditions)
        return _ordered(query, (value, row.job_pk), after, descending), row.job_pk, own

    def _is_on(self, node: Node, sort: ValueRef) -> bool:
        """Whether a condition is about the value that the table is sorted by."""
        return isinstance(node, Comparison | Membership | Exists) and self._builder.keys[node.key] == sort

    def _missing_query(self, sort: ValueRef, after: Position | None, *, descending: bool) -> sa.Select[Any]:
        row: Any = aliased(JobValue)
        has = sa.exists().where(row.job_pk == Job.pk, row.key_pk == (-1 if sort.pk is None else sort.pk))
        query = sa.select(Job.pk).where(~has.correlate_except(row))
        return _ordered(query, (Job.pk,), after, descending)

    def _column_query(
        self, column: Any, is_created: bool, phase: Phase, after: Position | None, *, descending: bool
    ) -> sa.Select[Any] | None:
        """Return the query in the order of a column; the id decides between jobs with equal values."""
        query = sa.select(Job.pk)
        if is_created:
            return _ordered(query, (Job.pk,), after, descending) if phase == "number" else None
        if phase == "text":
            return None
        # The indexes of columns end with the public id.
        end = None
        if after is not None:
            end = (*after[:2], self._session.scalar(sa.select(Job.id).where(Job.pk == after[2])))
        if phase == "missing":
            return _ordered(query.where(column.is_(None)), (Job.id,), end, descending)
        return _ordered(query.where(column.is_not(None)), (column, Job.id), end, descending)

    # -- positions -----------------------------------------------------------------------------------------------------

    def _position(self, job_id: str) -> Position:
        """Return where a job is in the order."""
        row = self._session.execute(self._with_sort_value().where(Job.id == job_id)).first()
        if row is None:
            raise NotFoundError(f"there is no job {job_id!r}", code="job_not_found", param="after")
        return self._position_of(*row)

    def _with_sort_value(self) -> sa.Select[Any]:
        sort = self._query.sort
        if isinstance(sort, ColumnKey):
            value = sa.literal(0) if sort.name == "created" else column_of(sort.name)
            return sa.select(Job.pk, value, sa.null())
        row: Any = aliased(JobValue)
        matches = sa.and_(row.job_pk == Job.pk, row.key_pk == (-1 if sort.pk is None else sort.pk))
        return sa.select(Job.pk, row.number, row.text).outerjoin(row, matches)

    def _position_of(self, pk: int, number: Any, text: str | None) -> Position:
        if number is not None:
            return "number", number, pk
        return ("missing", 0, pk) if text is None else ("text", text, pk)


def _pks(condition: Callable[[Any], Condition]) -> sa.Select[Any]:
    """Return the query for the keys of all jobs that meet a condition, independent of the enclosing query."""
    job: Any = aliased(Job)
    return sa.select(job.pk).where(condition(job))


def _literal(pks: Sequence[int]) -> Any:
    """Return keys as part of the statement: thousands of parameters take longer than the query."""
    return sa.bindparam("pks", list(pks), expanding=True, literal_execute=True)


def _phase_number(phase: Phase) -> int:
    return ("number", "text", "missing").index(phase)


def _ordered(
    query: sa.Select[Any], columns: Sequence[Any], after: tuple[Any, ...] | None, descending: bool
) -> sa.Select[Any]:
    """Return the query in the order of columns, from behind a position on."""
    if after is not None:
        values = after[-len(columns) :] if len(columns) > 1 else after[-1:]
        if len(columns) == 1:
            left, right = columns[0], values[0]
        else:
            left = sa.tuple_(*columns)
            right = sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(values, columns, strict=True)))
        query = query.where(left < right if descending else left > right)
    return query.order_by(*(column.desc() if descending else column.asc() for column in columns))
