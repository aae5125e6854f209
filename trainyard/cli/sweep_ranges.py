"""The values and ranges of fields that `sweep` gets. Pure functions."""

import re
from typing import Any

from trainyard.cli.errors import UsageError
from trainyard.cli.specs import read_value
from trainyard.contract.spec.field_types import is_text
from trainyard.contract.wire.search import parse_range, typed_value

_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*["]""")
_EMPTY = re.compile(r"(?:^|,)\s*(?:,|$)")
"""An empty value before, between or after commas."""


def parse_grid(grid: list[str]) -> dict[str, list[Any]]:
    """Parse `optimizer.lr=1e-4,3e-4` to {"optimizer.lr": [0.0001, 0.0003]}; values are YAML, and `[a, b]` is a single
    value.

    Raises:
        UsageError: an axis has another form, has an empty value, or repeats a field.
    """
    axes: dict[str, list[Any]] = {}
    for axis in grid:
        path, equals, text = axis.partition("=")
        if not equals or not text or not all(path.split(".")):
            raise UsageError(f"--grid takes path=value,value, like optimizer.lr=1e-4,3e-4; not {axis!r}")
        if _EMPTY.search(_QUOTED.sub("''", text)):
            raise UsageError(f"--grid {axis}: a value is empty; remove the comma, or write '' for an empty string")
        if path in axes:
            raise UsageError(f"--grid names {path} twice; list all its values in one --grid")
        values = read_value("--grid", axis, f"[{text}]", path)
        # YAML reads 1e-2, without a dot, as text, which is right only in quotes or for a field of text.
        is_meant = is_text(path) or _QUOTED.search(text)
        axes[path] = values if is_meant else [typed_value(one) if isinstance(one, str) else one for one in values]
    return axes


def parse_ranges(params: list[str]) -> dict[str, Any]:
    """Parse `optimizer.lr=log:1e-5:1e-1` to the range of each field.

    Raises:
        UsageError: a range has another form, or a field is named twice.
    """
    space: dict[str, Any] = {}
    for param in params:
        path, equals, text = param.partition("=")
        if not equals or not text or not all(path.split(".")):
            raise UsageError(f"--param takes path=range, like optimizer.lr=log:1e-5:1e-1; not {param!r}")
        if path in space:
            raise UsageError(f"--param names {path} twice")
        try:
            space[path] = parse_range(text, as_text=is_text(path))
        except ValueError as error:
            is_list = "," in text and ":" not in text
            hint = f". To run each of these values: --grid {param}" if is_list else ""
            raise UsageError(f"--param {param}: {text!r} {error}{hint}") from None
    return space


def search_options(algorithm: str | None, space: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a search; empty without `--search` and `--param`.

    Raises:
        UsageError: an option needs a search, or the search has no range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if algorithm is None and not space:
        if given:
            raise UsageError(f"--{next(iter(given)).replace('_', '-')} needs --search and --param PATH=RANGE")
        return {}
    if not space:
        raise UsageError(f"--search {algorithm} needs at least one --param PATH=RANGE, like optimizer.lr=log:1e-5:1e-1")
    return {"algorithm": algorithm or "tpe", "space": space, **given}


def require_variants(axes: dict[str, Any], search: dict[str, Any]) -> None:
    """Raises UsageError: there is neither a grid nor a search, or there are both."""
    if bool(axes) == bool(search):
        raise UsageError(
            "a sweep needs at least one --grid PATH=VALUE,VALUE, like --grid optimizer.lr=1e-4,3e-4, or ranges to "
            "search, like --search tpe --param optimizer.lr=log:1e-5:1e-1"
        )
