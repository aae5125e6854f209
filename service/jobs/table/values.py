"""The values of a job by which the runs table filters and sorts: a number or a text for each name. Pure functions."""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from service.jobs.parameters import Reported
from trainyard.contract.parameter_text import parse_number
from trainyard.contract.spec.ineffective_fields import ignored_fields

Kind = Literal["spec", "parameter", "tag", "metric", "min", "max", "min_step", "max_step", "non_finite"]
"""The source of a value. `metric` is the last value of a metric; `non_finite` marks one that was NaN or infinite."""

MAX_TEXT = 200
"""Characters of a text that are compared."""
MAX_NAME = 512
_MAX_DEPTH = 12
_MAX_SPEC_VALUES = 2000
"""Maximum number of fields of a spec; only maps of the user, such as environment variables, can have that many."""

SPEC: Kind = "spec"
PARAMETER: Kind = "parameter"
TAG: Kind = "tag"


class StoredValue(NamedTuple):
    """Either is set."""

    number: float | None
    text: str | None


Named = tuple[Kind, str]
Values = dict[Named, StoredValue]


def stored_value(value: Any, *, is_parameter: bool = False) -> StoredValue | None:
    """Return a value in its stored form; None if it is missing.

    Numbers that a database cannot order, such as NaN, are texts. Parameters are often texts of numbers, because a
    command line or a tracker made them, so they are numbers here.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return StoredValue(None, "true" if value else "false")
    if isinstance(value, int | float):
        return (
            _number(float(value))
            if abs(value) < 1e308 or isinstance(value, float)
            else StoredValue(None, str(value)[:MAX_TEXT])
        )
    if isinstance(value, str):
        number = parse_number(value) if is_parameter else None
        return _text(value) if number is None or not math.isfinite(number) else StoredValue(number, None)
    return _text(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def _number(value: float) -> StoredValue:
    if math.isfinite(value):
        return StoredValue(value + 0.0, None)
    return StoredValue(None, "NaN" if value != value else "Infinity" if value > 0 else "-Infinity")


def _text(value: str) -> StoredValue:
    return StoredValue(None, value[:MAX_TEXT])


def spec_values(spec: Mapping[str, Any]) -> Values:
    """Return the fields of a spec by dotted path, without fields that are null or empty, or that its task ignores."""
    values: Values = {}
    for path, value in _leaves(spec, "", 0, ignored_fields(str(spec.get("task")))):
        stored = stored_value(value)
        if stored is not None and len(path) <= MAX_NAME:
            values[SPEC, path] = stored
            if len(values) >= _MAX_SPEC_VALUES:
                break
    return values


def _leaves(node: Mapping[str, Any], prefix: str, depth: int, left_out: Collection[str]) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        path = f"{prefix}{name}"
        if path in left_out:
            continue
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _leaves(value, f"{path}.", depth + 1, left_out)
        elif value not in (None, [], {}):
            yield path, value


def reported_values(reported: Reported) -> Values:
    """Return the parameters and tags of a job."""
    values: Values = {}
    for name, (_, value) in reported.parameters.items():
        stored = stored_value(value, is_parameter=True)
        if stored is not None:
            values[PARAMETER, name[:MAX_NAME]] = stored
    for name, (_, value) in reported.tags.items():
        values[TAG, name[:MAX_NAME]] = _text(str(value))
    return values
