"""The request body of a spec: YAML text unchanged, other specs as JSON."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.client.errors import InvalidRequestError
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.spec.yaml_loader import load_yaml

Spec = TrainingSpec | Mapping[str, Any] | str
"""A spec as data: a TrainingSpec, plain data, or YAML text."""

_NO_SPEC = 'a spec must be a mapping of fields, YAML text, or the name of a preset; for a file, pass Path("spec.yaml")'


def spec_body(spec: Spec) -> tuple[bytes, str]:
    """Return the content of the request body and its media type. Raises InvalidRequestError: it is not a spec."""
    if isinstance(spec, str):
        # The service reports invalid YAML, with all other problems.
        with suppress(SpecError):
            plain_spec(spec)
        return spec.encode(), "application/yaml"
    return json_body(plain_spec(spec)), "application/json"


def is_preset_name(text: str) -> bool:
    """Return whether a text that is passed as a spec is the name of a preset: a single word is not a YAML mapping."""
    return re.fullmatch(r"[a-z][a-z0-9_]*", text) is not None


def read_spec_file(path: Path) -> str:
    """Return the text of a spec file, which the service validates. JSON is valid YAML.

    Raises:
        InvalidRequestError: it cannot be read.
    """
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read the spec file {str(path)!r}: {error}") from None


def plain_spec(spec: Spec) -> Mapping[str, Any]:
    """Return the spec as plain data.

    Raises:
        InvalidRequestError: it is not a spec.
        SpecError: the text is not YAML.
    """
    if isinstance(spec, TrainingSpec):
        return dump_spec(spec)
    document = load_yaml(spec) if isinstance(spec, str) else spec
    if not isinstance(document, Mapping):
        raise InvalidRequestError(_NO_SPEC)
    return document


def json_body(document: Mapping[str, Any]) -> bytes:
    """Return the document as JSON.

    Raises:
        InvalidRequestError: it contains values that JSON cannot represent; each is reported.
    """
    try:
        return json.dumps(document, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        problems = [Problem(param=path, message=_not_json(value)) for path, value in _non_json_values(document)]
        first = problems[0] if problems else Problem(param="", message=f"the spec is not plain JSON data: {error}")
        raise InvalidRequestError(first.message, problems=problems, param=first.param or None) from None


def _not_json(value: Any) -> str:
    kind = value if isinstance(value, float) else type(value).__name__
    return f"must be a string, a finite number or other plain JSON data, not {kind}"


def _non_json_values(value: Any, path: str = "", parents: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each item that JSON cannot represent. `parents`: ids, to detect cycles."""
    if isinstance(value, dict | list | tuple) and id(value) not in parents:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _non_json_values(item, f"{path}.{key}" if path else str(key), (*parents, id(value)))
        return
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        yield path, value
