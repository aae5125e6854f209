"""Values of single layers, chosen by patterns of their names. Pure functions."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

Value = TypeVar("Value")


def matches_layer(pattern: str, layer: str) -> bool:
    """Return whether a pattern is a layer's full name, its last part, or a glob pattern of either."""
    return any(fnmatchcase(name, pattern) for name in (layer, layer.rpartition(".")[2]))


def value_of(layer: str, patterns: Mapping[str, Value], default: Value) -> Value:
    """Return the value of the first pattern that matches a layer."""
    return next((value for pattern, value in patterns.items() if matches_layer(pattern, layer)), default)


def patterns_of(values: Mapping[str, Value], default: Value) -> dict[str, Value]:
    """Return patterns that give these layers their values. A pattern is the last part of a name if all layers with this
    part have the same value, else a full name.

    Args:
        values: The values of all layers by their full names.
        default: The value of layers that no pattern matches.
    """
    by_part: dict[str, set[Value]] = {}
    for layer, value in values.items():
        by_part.setdefault(layer.rpartition(".")[2], set()).add(value)
    patterns: dict[str, Value] = {}
    # A pattern of a last part is also a full name, and the first match counts: longer names come first.
    for layer in sorted(values, key=lambda layer: (-layer.count("."), layer)):
        part = layer.rpartition(".")[2]
        if len(by_part[part]) == 1 and values[layer] != default:
            patterns.setdefault(part, values[layer])
        elif len(by_part[part]) > 1 and value_of(layer, patterns, default) != values[layer]:
            patterns = {layer: values[layer], **patterns}
    return patterns
