"""The meaning of a key of the runs table: a column of jobs, or a kind of value with its name. Pure functions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from service.jobs.table.values import Kind, Named
from trainyard.contract.evaluation_metric import is_higher_better
from trainyard.contract.job_query import Key, QueryError, in_backticks

ColumnName = Literal[
    "id",
    "name",
    "project",
    "status",
    "reason",
    "user",
    "sweep",
    "created",
    "started",
    "finished",
    "runtime",
    "archived",
    "age",
    "error",
    "notes",
    "diverged",
    "node",
    "step",
]

COLUMNS: Mapping[str, ColumnName] = {
    **{name: name for name in ("id", "name", "project", "status", "reason", "user", "sweep")},
    **{name: name for name in ("created", "started", "finished", "runtime", "archived")},
    **{name: name for name in ("age", "error", "notes", "diverged", "node", "step")},
    "created_by": "user",
    "owner": "user",
    "by": "user",
    "created_at": "created",
    "started_at": "started",
    "finished_at": "finished",
    "status_reason": "reason",
    "sweep_id": "sweep",
    "nodes": "node",
    "progress": "step",
}
"""The columns of jobs by the names that queries use."""
DESCRIBED: Mapping[ColumnName | Literal["tag"], str] = {
    "name": "Name of the job",
    "project": "Project to which it belongs",
    "status": "Status, such as succeeded",
    "user": "Who submitted it",
    "tag": "One of its tags",
    "created": "Time of submission",
    "age": "Time since its submission",
    "runtime": "Time from its first start to its end, or until now",
    "started": "Time of its first start",
    "finished": "Time of its end",
    "error": "Why it failed, as a text",
    "notes": "Its notes",
    "diverged": "Whether a metric was NaN or infinite, or its failure states so",
    "node": "A node on which it ran",
    "step": "The step that it has reached",
    "reason": "Why it ended, as a code",
    "sweep": "Id or name of its sweep",
    "archived": "Whether it is archived",
    "id": "Id of the job",
}
TAG_KEY = "tag"
_TAG_KEYS = frozenset({TAG_KEY, "tags"})
"""The names of the key of tags; the table has a column *Tags*."""
_KNOWN_AS: Mapping[str, ColumnName] = {"state": "status", "duration": "runtime", "elapsed": "runtime"}
"""Names of a column in other trackers and schedulers."""
TIMES: Collection[ColumnName] = frozenset({"created", "started", "finished"})

_PREFIXES: Mapping[str, Kind] = {
    "spec.": "spec",
    "parameters.": "parameter",
    "parameter.": "parameter",
    "params.": "parameter",
    "tags.": "tag",
    "metrics.": "metric",
    "metric.": "metric",
}
_WITHOUT_ORDER: Collection[str] = frozenset(
    {"step", "progress", "error", "notes", *_TAG_KEYS, "diverged", "node", "nodes"}
)
"""Keys by which jobs cannot be sorted."""
_UNPREFIXED: Sequence[Kind] = ("spec", "parameter", "metric")
"""In which order kinds are tried for a key without a prefix."""


@dataclass(frozen=True)
class ColumnKey:
    """A column of jobs."""

    name: ColumnName


@dataclass(frozen=True)
class TagKey:
    """The names of a job's tags."""


@dataclass(frozen=True)
class ValueRef:
    """A kind of value and its name; `pk` is None if no job has such a value."""

    named: Named
    pk: int | None


ResolvedKey = ColumnKey | TagKey | ValueRef


def candidates(key: Key) -> list[Named]:
    """Return the kinds of values that a key may stand for, the preferred kind first; empty for a column of jobs.

    Raises:
        QueryError: the key takes a statistic of a value that is not a metric.
    """
    if key.aggregate is not None:
        name = next(
            (key.name.removeprefix(one) for one in ("metrics.", "metric.") if key.name.startswith(one)), key.name
        )
        return [(_kind_of(key.aggregate, name), name)]
    for prefix, kind in _PREFIXES.items():
        if key.name.startswith(prefix) and len(key.name) > len(prefix):
            return [(kind, key.name[len(prefix) :])]
    if key.name in COLUMNS or key.name in _TAG_KEYS:
        return []
    return [(kind, key.name) for kind in _UNPREFIXED]


def _kind_of(aggregate: str, metric: str) -> Kind:
    best: Kind = "max" if is_higher_better(metric) else "min"
    best_step: Kind = "max_step" if is_higher_better(metric) else "min_step"
    kinds: Mapping[str, Kind] = {
        "last": "metric",
        "min": "min",
        "max": "max",
        "min_step": "min_step",
        "max_step": "max_step",
        "best": best,
        "best_step": best_step,
    }
    return kinds[aggregate]


def resolve_key(key: Key, numbers: Mapping[Named, int], spec_fields: Collection[str]) -> ResolvedKey | None:
    """Return the value or column that a key stands for; None for an unknown key.

    Args:
        numbers: The known keys among `candidates(key)`, with their numbers.
        spec_fields: Fields that a spec can have, even if no job has them.
    """
    possible = candidates(key)
    if not possible:
        return TagKey() if key.name in _TAG_KEYS else ColumnKey(COLUMNS[key.name])
    for named in possible:
        if named in numbers:
            return ValueRef(named, numbers[named])
    if len(possible) == 1:
        return ValueRef(possible[0], None)
    return ValueRef(("spec", key.name), None) if key.name in spec_fields else None


def joined_columns(key: Key) -> QueryError:
    """Return the error for a text with several columns, separated by commas, which names may contain."""
    text = f"{key.aggregate}({key.name})" if key.aggregate else key.name
    first, second, *_ = (name.strip()[:40] for name in text.split(","))
    remedy = f"give each column by itself: columns={first}&columns={second}"
    return QueryError(f"no job has `{text[:80]}`; {remedy}", key.column)


def is_unknown(resolved: ResolvedKey | None) -> bool:
    """Whether no job has the key."""
    return resolved is None or (isinstance(resolved, ValueRef) and resolved.pk is None)


def unknown_key(key: Key, known: Collection[str]) -> QueryError:
    """Return the error for an unknown key, with the nearest known keys."""
    near = _nearest(key, known)
    hint = f"; did you mean {' or '.join(map(in_backticks, near))}?" if near else ""
    return QueryError(f"no job has {in_backticks(key.name[:80])}{hint}", key.column)


def has_order(key: ColumnKey) -> bool:
    """Whether jobs can be sorted by a column."""
    return key.name not in _WITHOUT_ORDER


def unsortable_key(key: Key, known: Collection[str]) -> QueryError:
    """Return the error for an unknown key of a sort: the nearest known keys, or else all keys that can sort jobs."""
    if key.name not in _WITHOUT_ORDER and _nearest(key, known):
        return unknown_key(key, known)
    names = ", ".join(name for name in DESCRIBED if name not in _WITHOUT_ORDER)
    return QueryError(
        f"jobs cannot be sorted by `{key.name[:80]}`; sort by {names}, a field such as `optimizer.lr`, a parameter, a "
        "metric or `tags.NAME`; progress, errors, notes, nodes, tags and `diverged` have no order",
        key.column,
    )


def _nearest(key: Key, known: Collection[str]) -> list[str]:
    """Return the nearest known keys: by spelling, or by their last part."""
    if (other := _KNOWN_AS.get(key.name.lower())) is not None:
        return [other]
    last = key.name.rpartition(".")[2].rpartition("/")[2].lower()
    by_part = sorted(name for name in known if _last_part(name) == last and last)
    by_spelling = get_close_matches(key.name, [*known, *DESCRIBED], n=3, cutoff=0.75)
    return list(dict.fromkeys([*by_part[:3], *by_spelling]))[:3]


def _last_part(name: str) -> str:
    return name.rpartition(".")[2].rpartition("/")[2].lower()
