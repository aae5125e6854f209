"""The differing fields of specs. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

_IGNORED_FIELDS = frozenset({"name", "project", "metadata"})


def flatten(spec: Any, path: str = "") -> dict[str, Any]:
    """Return a spec's values by dotted path; lists count as values."""
    if not isinstance(spec, dict):
        return {path: spec}
    fields: dict[str, Any] = {}
    for name, value in spec.items():
        if path or name not in _IGNORED_FIELDS:
            fields |= flatten(value, f"{path}.{name}" if path else name)
    return fields


def comparable(spec: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a spec by path, and of the parameters that the program reported by `parameters.<name>`."""
    return flatten(spec) | {f"parameters.{name}": value for name, value in parameters.items()}


def differing_paths(specs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the paths whose values differ, in the order of the first spec that has them."""
    paths = dict.fromkeys(path for spec in specs for path in spec)
    return [path for path in paths if any(spec.get(path) != specs[0].get(path) for spec in specs)]
