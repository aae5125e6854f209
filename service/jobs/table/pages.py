"""All SQL that finds the jobs of a page of the runs table.

A page is read from the index of what it is sorted by, whose rows are in order, and each row is checked against the
query. If one condition alone leaves few jobs, those are read by its own index and sorted here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from service.core.errors import NotFoundError
from service.db.models import Job, JobValue, ValueKey
from service.db.paging import PageRequest
from service.jobs.table.conditions import Condition, ConditionBuilder, column_of, conjuncts
from service.jobs.table.keys import ColumnKey, TagKey, ValueRef
from trainyard.contract.job_query import Comparison, Exists, Membership, Node

FEW = 4000
"""Jobs that are sorted here."""
_ENOUGH = 200
"""Jobs of one condition for which no smaller condition is looked for."""
_INDEXED_COLUMNS = ("id", "name", "status", "user", "sweep")
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
    """Finds pages within one session."""

    def __init__(self, session: Session, query: TableQuery, builder: ConditionBuilder):
        self._session = session
        self._query = query
        self._builder = builder
        self._conjuncts = conjuncts(query.where)

    def page(self, request: PageRequest) -> tuple[list[int], bool]:
        """Return the keys of the jobs of one page in order, and whether more follow.

        Raises:
            NotFoundError: the job `request.after` does not exist.
        """
        after = None if request.after is None else self._position(request.after)
        few = self._few()
        found = self._sorted(few, after, request) if few is not None else self._scan(after, request)
        pks = []
        for pk in found:
            pks.append(pk)
            if len(pks) > request.limit:
                break
        return pks[: request.limit], len(pks) > request.limit

    # -- conditions --------------------------------------------------------------------------------------------------

    @cached_property
    def _of_job(self) -> list[Condition]:
        """The conditions on columns of `jobs`."""
        conditions: list[Condition] = [Job.deletion_requested_at.is_(None)]
        if self._query.archived is not None:
            archived = Job.archived_at.is_not(None) if self._query.archived else Job.archived_at.is_(None)
            conditions.append(archived)
        for node in self._conjuncts:
            key = self._builder.keys[node.key] if isinstance(node, Comparison | Membership | Exists) else None
            if isinstance(node, Comparison | Membership | Exists) and isinstance(key, ColumnKey):
                conditions.append(self._builder.of_column(node, key.name))
        return conditions

    def _others(self, job_pk: Any, *, without: Sequence[Node] = ()) -> list[Condition]:
        """Return the other conditions, for the job of a row."""
        rest = [node for node in self._conjuncts if node not in without and not self._is_on_column(node)]
        return [self._builder.build(node, job_pk, Job if job_pk is Job.pk else None) for node in rest]

    def _is_on_column(self, node: Node) -> bool:
        if not isinstance(node, Comparison | Membership | Exists):
            return False
        return isinstance(self._builder.keys[node.key], ColumnKey)

    # -- few jobs, sorted here ---------------------------------------------------------------------------------------

    def _few(self) -> list[int] | None:
        """Return the jobs of the condition that leaves the fewest, if those are few."""
        best: list[int] | None = None
        for node in self._conjuncts:
            query = self._by_index(node)
            if query is None:
                continue
            pks = list(self._session.scalars(query.limit(FEW + 1)))
            if len(pks) <= FEW and (best is None or len(pks) < len(best)):
                best = pks
            if best is not None and len(best) <= _ENOUGH:
                return best
        return best

    def _by_index(self, node: Node) -> sa.Select[Any] | None:
        """Return the query for the jobs of one condition, if an index has them."""
        if not isinstance(node, Comparison | Membership | Exists) or (isinstance(node, Membership) and node.negated):
            return None
        if isinstance(node, Comparison) and node.operator not in _RANGES:
            return None
        key = self._builder.keys[node.key]
        if isinstance(key, ColumnKey):
            is_equal = isinstance(node, Membership) or (isinstance(node, Comparison) and node.operator == "=")
            if key.name not in _INDEXED_COLUMNS or not is_equal:
                return None
            return sa.select(Job.pk).where(self._builder.of_column(node, key.name))
        if isinstance(key, ValueRef):
            return sa.select(JobValue.job_pk).where(self._builder.of_value(node, JobValue, key))
        if isinstance(node, Comparison) and isinstance(key, TagKey) and node.operator == "=":
            tag = sa.select(ValueKey.pk).where(ValueKey.kind == "tag", ValueKey.name == str(node.value))
            return sa.select(JobValue.job_pk).where(JobValue.key_pk == tag.scalar_subquery())
        return None

    def _sorted(self, few: Sequence[int], after: Position | None, request: PageRequest) -> Iterator[int]:
        """Yield the jobs among these that match, in order."""
        positions: list[Position] = []
        for start in range(0, len(few), 1000):
            chosen: Any = sa.bindparam("pks", few[start : start + 1000], expanding=True, literal_execute=True)
            query = self._with_sort_value().where(Job.pk.in_(chosen), *self._of_job, *self._others(Job.pk))
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
        """Yield the jobs that match, in order. What the caller does not read is not queried by another phase."""
        left = request.limit + 1
        for phase in ("number", "text", "missing"):
            if after is not None and _phase_number(after[0]) > _phase_number(phase):
                continue
            start = after if after is not None and after[0] == phase else None
            query = self._phase_query(phase, start, descending=request.descending)
            pks = [] if query is None else list(self._session.scalars(query.limit(left)))
            yield from pks
            left -= len(pks)
            if left <= 0:
                return

    def _phase_query(self, phase: Phase, after: Position | None, *, descending: bool) -> sa.Select[Any] | None:
        sort = self._query.sort
        if isinstance(sort, ColumnKey):
            return self._column_query(column_of(sort.name), sort.name == "created", phase, after, descending=descending)
        if phase == "missing":
            return None if self._needs_value(sort) else self._missing_query(sort, after, descending=descending)
        if sort.pk is None:
            return None
        row: Any = JobValue
        value = row.number if phase == "number" else row.text
        own = [node for node in self._conjuncts if self._is_on(node, sort)]
        conditions = [self._builder.of_value(node, row, sort) for node in own]  # type: ignore[arg-type]
        query = sa.select(row.job_pk).where(row.key_pk == sort.pk, value.is_not(None), *conditions)
        query = query.where(sa.exists().where(Job.pk == row.job_pk, *self._of_job).correlate_except(Job))
        return _ordered(query.where(*self._others(row.job_pk, without=own)), (value, row.job_pk), after, descending)

    def _is_on(self, node: Node, sort: ValueRef) -> bool:
        """Whether a condition is one on the value that the table is sorted by."""
        return isinstance(node, Comparison | Membership | Exists) and self._builder.keys[node.key] == sort

    def _needs_value(self, sort: ValueRef) -> bool:
        return any(self._is_on(node, sort) for node in self._conjuncts)

    def _missing_query(self, sort: ValueRef, after: Position | None, *, descending: bool) -> sa.Select[Any]:
        row: Any = aliased(JobValue)
        has = sa.exists().where(row.job_pk == Job.pk, row.key_pk == (-1 if sort.pk is None else sort.pk))
        query = sa.select(Job.pk).where(~has.correlate_except(row), *self._of_job, *self._others(Job.pk))
        return _ordered(query, (Job.pk,), after, descending)

    def _column_query(
        self, column: Any, is_created: bool, phase: Phase, after: Position | None, *, descending: bool
    ) -> sa.Select[Any] | None:
        """Return the query in the order of a column; the id decides between jobs with one value."""
        query = sa.select(Job.pk).where(*self._of_job, *self._others(Job.pk))
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
