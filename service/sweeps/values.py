"""The values of a member as its resolved spec has them. Pure functions."""

from collections.abc import Mapping
from typing import Any

_VERBATIM = frozenset({"auto"})
"""Requested values that are more telling than what they became."""


def typed_values(changes: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes with the type that the spec gives them: the text `1e-2` becomes the number 0.01."""
    return {path: _typed(value, _at(spec, path)) for path, value in changes.items()}


def _typed(requested: Any, resolved: Any) -> Any:
    is_scalar = isinstance(resolved, bool | int | float)
    return (
        resolved if is_scalar and isinstance(requested, str | int | float) and requested not in _VERBATIM else requested
    )


def _at(spec: Mapping[str, Any], path: str) -> Any:
    inner: Any = spec
    for part in path.split("."):
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner
