"""A query of the runs table as conditions of SQL. Builds statements; executes none."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt, ne
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from service.db.models import Attempt, Job, JobValue, Sweep, ValueKey
from service.db.types import to_micros
from service.jobs.table.divergence import has_diverged
from service.jobs.table.keys import TIMES, ColumnKey, ColumnName, ResolvedKey, TagKey, ValueRef
from service.jobs.table.value_types import as_number, as_text, check_choice, check_comparison, value_types
from service.jobs.table.values import Named
from trainyard.contract.base import MAX_SAFE_INT, MAX_TIME, MIN_TIME
from trainyard.contract.job_query import (
    And,
    Comparison,
    Duration,
    Exists,
    Key,
    Membership,
    Node,
    Not,
    Or,
    QueryError,
    Value,
)
from trainyard.contract.wire.jobs import JobStatus

Condition = sa.ColumnElement[bool]

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_TEXT_COLUMNS = frozenset({"id", "name", "project", "status", "reason", "user", "sweep", "error", "notes"})
_REVERSED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ATTRIBUTES: Mapping[ColumnName, str] = {
    "id": "id",
    "name": "name",
    "project": "project",
    "status": "status",
    "reason": "status_reason",
    "user": "created_by",
    "sweep": "sweep_id",
    "created": "created_at",
    "started": "started_at",
    "finished": "finished_at",
    "runtime": "runtime",
    "archived": "archived_at",
    "age": "created_at",
}

_STATUSES: tuple[str, ...] = get_args(JobStatus)
_KNOWN_AS: Mapping[str, JobStatus] = {
    **dict.fromkeys(("finished", "completed", "complete", "success", "done"), "succeeded"),
    **dict.fromkeys(("error", "errored", "crashed"), "failed"),
    **dict.fromkeys(("killed", "canceled", "stopped", "aborted"), "cancelled"),
    **dict.fromkeys(("waiting", "scheduled"), "pending"),
    **dict.fromkeys(("active", "started"), "running"),
}
"""Names of a status in other trackers and schedulers."""

INDEXED_COLUMNS = frozenset({"id", "name", "project", "status", "user", "sweep"})


def is_equality(node: Comparison | Membership | Exists) -> bool:
    """Whether an index finds the jobs of a condition on a column."""
    if isinstance(node, Membership):
        return not node.negated
    return isinstance(node, Comparison) and node.operator == "="


def column_of(name: ColumnName, job: Any = Job) -> Any:
    """Return the column, of `jobs` or of an alias of it. For `age` it is the time of submission."""
    if name == "error":
        return sa.case((job.status == "failed", sa.func.nullif(job.status_message, "")))
    if name == "notes":
        return sa.func.nullif(job.parameters["notes"][1].as_string(), "")
    if name == "diverged":
        return has_diverged(job)
    if name == "step":
        # Steps have up to 53 bits, and INTEGER of Postgres has 32.
        return sa.cast(job.progress["step"].as_string(), sa.BigInteger)
    return getattr(job, _ATTRIBUTES[name])


@dataclass(frozen=True)
class ConditionBuilder:
    """Builds the conditions of a query."""

    keys: Mapping[Key, ResolvedKey]
    now: datetime
    as_sets: bool = False
    """Whether the database finds the jobs of each condition once, by its index, instead of looking up each job."""

    def of_value(self, node: Comparison | Membership | Exists, row: type[JobValue], ref: ValueRef) -> Condition:
        """Return the condition on a row of `job_values` of the key of a positive comparison.

        Raises:
            QueryError: no value of the key can meet the comparison.
        """
        is_key = row.key_pk == (-1 if ref.pk is None else ref.pk)
        if isinstance(node, Exists):
            return is_key
        check_comparison(node, ref.named)
        if isinstance(node, Membership):
            matches = sa.or_(*(_equals(row, value, ref.named) for value in node.values))
            return sa.and_(is_key, sa.not_(sa.func.coalesce(matches, sa.false())) if node.negated else matches)
        return sa.and_(is_key, _compares(row, node, ref.named))

    def build(self, node: Node, job_pk: Any, job: Any = None) -> Condition:
        """Return the condition of a tree.

        Args:
            job_pk: The column with the key of the job, of an enclosing query.
            job: The table `jobs`, or an alias of it, if the enclosing query reads it.

        Raises:
            QueryError: a comparison makes no sense for its key.
        """
        if isinstance(node, And):
            return sa.and_(*(self.build(each, job_pk, job) for each in node.operands))
        if isinstance(node, Or):
            return sa.or_(*(self.build(each, job_pk, job) for each in node.operands))
        if isinstance(node, Not):
            # A condition that is NULL in SQL, such as a comparison of a column without a value, does not match.
            return sa.not_(sa.func.coalesce(self.build(node.operand, job_pk, job), sa.false()))
        key = self.keys[node.key]
        if isinstance(key, ColumnKey):
            if job is not None:
                return self.of_column(node, key.name, job)
            other: Any = aliased(Job)
            if self.as_sets and key.name in INDEXED_COLUMNS and is_equality(node):
                return sa.and_(job_pk.in_(sa.select(other.pk).where(self.of_column(node, key.name, other))))
            of_job = sa.exists().where(other.pk == job_pk, self.of_column(node, key.name, other))
            return of_job.correlate_except(other)
        row: Any = aliased(JobValue)
        if isinstance(key, TagKey):
            return self._of_tag(node, row, job_pk)
        if self.as_sets:
            return sa.and_(job_pk.in_(sa.select(row.job_pk).where(self.of_value(node, row, key))))
        # With an offset, Postgres looks up each job, instead of joining all jobs that meet the condition.
        matching = sa.select(row.job_pk).where(row.job_pk == job_pk, self.of_value(node, row, key)).offset(0)
        return sa.exists(matching.correlate_except(row))

    def _of_tag(self, node: Comparison | Membership | Exists, row: Any, job_pk: Any) -> Condition:
        """Return the condition on the names of a job's tags."""
        tag: Any = aliased(ValueKey)
        has = sa.exists().where(row.job_pk == job_pk, tag.pk == row.key_pk, tag.kind == "tag")
        if isinstance(node, Exists):
            return has.correlate_except(row, tag)
        if isinstance(node, Membership):
            names = [as_text(value) for value in node.values]
            matching = has.where(tag.name.in_(names)).correlate_except(row, tag)
            return sa.not_(matching) if node.negated else matching
        if node.operator not in ("=", "!=", "~", "!~"):
            raise QueryError(f"tags are compared by =, !=, ~ and in, not by {node.operator}", node.key.column)
        text = as_text(node.value)
        matches = tag.name == text if "=" in node.operator else tag.name.icontains(text, autoescape=True)
        matching = has.where(matches).correlate_except(row, tag)
        return sa.not_(matching) if node.operator.startswith("!") else matching

    def of_column(self, node: Comparison | Membership | Exists, name: ColumnName, job: Any = Job) -> Condition:
        """Return the condition on a column of jobs."""
        if name == "node":
            return _of_node(node, job)
        column = column_of(name, job)
        if isinstance(node, Exists):
            return sa.and_(column.is_not(None))
        if name == "archived":
            return _of_flag(node, column.is_not(None))
        if name == "diverged":
            return _of_flag(node, column)
        if name == "age":
            return self._of_age(node, column)
        if node.key.name == "sweep" and (isinstance(node, Membership) or node.operator in ("=", "!=", "~", "!~")):
            return _of_sweep(node, column)
        values = node.values if isinstance(node, Membership) else (node.value,)
        if name == "step":
            operands: list[Any] = [_step(value, node.key) for value in values]
        elif name in TIMES:
            _check_time(node, values)
            operands = [self._time(value, node.key) for value in values]
        elif name == "runtime":
            operands = [_micros(value, node.key) for value in values]
            # A job that has not ended has run until now.
            until_now = to_micros(self.now) - sa.type_coerce(job.started_at, sa.BigInteger)
            column = sa.func.coalesce(column, until_now)
        else:
            if name in ("error", "notes"):
                _check_long_text(node)
            operands = [as_text(value) for value in values]
            if name == "status":
                _check_statuses(node, operands)
        if isinstance(node, Membership):
            return sa.and_(column.not_in(operands) if node.negated else column.in_(operands))
        if node.operator in ("~", "!~"):
            if name not in _TEXT_COLUMNS:
                raise QueryError(f"`{node.key}` is no text; compare it by < or >", node.key.column)
            contains = column.icontains(operands[0], autoescape=True)
            return sa.and_(sa.not_(contains) if node.operator == "!~" else contains)
        return sa.and_(_COMPARE[node.operator](column, operands[0]))

    def _of_age(self, node: Comparison | Membership, created: Any) -> Condition:
        if not isinstance(node, Comparison) or node.operator not in _REVERSED:
            raise QueryError("`age` is a duration: compare it by < or >, such as `age < 2h`", node.key.column)
        age = timedelta(microseconds=_micros(node.value, node.key))
        limit = max(self.now - min(age, self.now - MIN_TIME), MIN_TIME)
        return sa.and_(_COMPARE[_REVERSED[node.operator]](created, limit))

    def _time(self, value: Value, key: Key) -> datetime:
        if isinstance(value, Duration):
            if value.seconds > 0:
                raise QueryError(
                    f"`{key}` is compared with a time in the past: `{key} > -7d` is since a week ago", key.column
                )
            seconds = max(-3e9, value.seconds)
            return min(max(self.now + timedelta(seconds=seconds), MIN_TIME), MAX_TIME)
        if isinstance(value, str):
            try:
                parsed = datetime.fromisoformat(value)
            except ValueError:
                pass
            else:
                parsed = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
                return min(max(parsed, MIN_TIME), MAX_TIME)
        raise QueryError(
            f'`{key}` is a time: compare it with one such as "2026-01-31" or with a duration such as -7d', key.column
        )


def _check_statuses(node: Comparison | Membership, statuses: Sequence[str]) -> None:
    if isinstance(node, Comparison) and node.operator in ("~", "!~"):
        return
    if isinstance(node, Comparison) and node.operator not in ("=", "!="):
        raise QueryError("statuses have no order; compare them by =, !=, ~ or in", node.key.column)
    for status in statuses:
        check_choice(status, _STATUSES, "status", node.key, _KNOWN_AS)


def _check_long_text(node: Comparison | Membership) -> None:
    """Refuse to order texts, and to compare them with numbers, as a metric of that name would be."""
    is_number = isinstance(node, Comparison) and isinstance(node.value, float)
    if is_number or (isinstance(node, Comparison) and node.operator in _REVERSED):
        name = node.key.name
        raise QueryError(
            f"`{name}` is a text: compare it by ~; for a metric of that name, write `metrics.{name}`", node.key.column
        )


def _check_time(node: Comparison | Membership, values: Sequence[Value]) -> None:
    """Refuse to compare a time by = with a day or a duration: times have microseconds."""
    is_equal = isinstance(node, Membership) or node.operator in ("=", "!=")
    if is_equal and not all(isinstance(value, str) and ":" in value for value in values):
        raise QueryError(
            f'`{node.key}` is a time: compare it by < or >, such as `{node.key} > "2026-01-31"`', node.key.column
        )


def _of_flag(node: Comparison | Membership, flag: Condition) -> Condition:
    if not isinstance(node, Comparison) or node.operator not in ("=", "!=") or not isinstance(node.value, bool):
        raise QueryError(f"`{node.key}` is compared by = with true or false", node.key.column)
    return flag if node.value == (node.operator == "=") else sa.not_(flag)


def _of_sweep(node: Comparison | Membership, column: Any) -> Condition:
    """Return the condition on the id or the name of a sweep."""
    sweep: Any = aliased(Sweep)
    if isinstance(node, Membership):
        texts, is_negated = [as_text(value) for value in node.values], node.negated
    else:
        texts, is_negated = [as_text(node.value)], node.operator.startswith("!")
    if isinstance(node, Comparison) and "~" in node.operator:
        matches = sa.or_(*(part.icontains(texts[0], autoescape=True) for part in (sweep.id, sweep.name)))
    else:
        matches = sa.or_(sweep.id.in_(texts), sweep.name.in_(texts))
    of_sweep = column.in_(sa.select(sweep.id).where(matches))
    return sa.and_(sa.not_(of_sweep) if is_negated else of_sweep)


def _of_node(node: Comparison | Membership | Exists, job: Any) -> Condition:
    """Return the condition on the nodes on which a job ran, in any attempt. A job that never ran matches none."""
    attempt: Any = aliased(Attempt)
    names = sa.cast(attempt.nodes, sa.Text)
    ran = sa.exists().where(attempt.job_pk == job.pk, names != "[]")
    if isinstance(node, Exists):
        return ran.correlate_except(attempt)
    if isinstance(node, Comparison) and node.operator not in ("=", "!=", "~", "!~"):
        raise QueryError(
            f"nodes are compared by =, !=, ~ and in, not by {node.operator}; for a value of that name, write "
            f"`parameters.{node.key.name}` or `metrics.{node.key.name}`",
            node.key.column,
        )
    if isinstance(node, Membership):
        texts, is_negated, is_part = [as_text(value) for value in node.values], node.negated, False
    else:
        texts, is_negated = [as_text(node.value)], node.operator.startswith("!")
        is_part = "~" in node.operator
    # In the stored list a name has quotes around it, and SQLite has other characters than ASCII as escapes.
    stored = [json.dumps(one, ensure_ascii=ascii_only) for one in texts for ascii_only in (True, False)]
    matches = (names.icontains(one[1:-1] if is_part else one, autoescape=True) for one in stored)
    matching = ran.where(sa.or_(*matches)).correlate_except(attempt)
    return sa.and_(ran.correlate_except(attempt), sa.not_(matching)) if is_negated else matching


def _step(value: Value, key: Key) -> int:
    number = None if isinstance(value, Duration) else as_number(value)
    if number is None or not number.is_integer():
        raise QueryError(f"`{key}` is a number of steps: compare it with one, such as `{key} > 1000`", key.column)
    return int(max(-1, min(MAX_SAFE_INT + 1, number)))


def _micros(value: Value, key: Key) -> int:
    seconds = value.seconds if isinstance(value, Duration) else value
    if isinstance(seconds, bool | str) or seconds < 0:
        raise QueryError(f"`{key}` is a duration: compare it with seconds, or with one such as 2h or 30min", key.column)
    return int(max(-1e12, min(1e12, seconds)) * 1e6)


def _equals(row: Any, value: Value, named: Named) -> Condition:
    number = as_number(value)
    if number is None:
        return sa.and_(row.text == as_text(value))
    if isinstance(value, str) or "text" in value_types(named).types:
        return sa.or_(row.number == number, row.text == as_text(value))
    return sa.and_(row.number == number)


def _compares(row: Any, node: Comparison, named: Named) -> Condition:
    operator, value = node.operator, node.value
    if operator in ("~", "!~"):
        contains = sa.and_(row.text.is_not(None), row.text.icontains(as_text(value), autoescape=True))
        return sa.not_(sa.func.coalesce(contains, sa.false())) if operator == "!~" else contains
    if operator == "=":
        return _equals(row, value, named)
    if operator == "!=":
        return sa.not_(sa.func.coalesce(_equals(row, value, named), sa.false()))
    number = as_number(value)
    if number is None and isinstance(value, bool):
        raise QueryError(f"`{node.key}` {operator} true makes no sense; use = or !=", node.key.column)
    if number is None:
        return sa.and_(_COMPARE[operator](row.text, as_text(value)))
    return sa.and_(_COMPARE[operator](row.number, number))


def conjuncts(node: Node | None) -> Sequence[Node]:
    """Return the conditions that all must hold."""
    if node is None:
        return ()
    return [one for each in node.operands for one in conjuncts(each)] if isinstance(node, And) else [node]
