"""What is sent of a spec: its text as it is, or its data as JSON. What neither can be is refused here."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from trainyard.client.errors import InvalidRequestError
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.spec.yaml_loader import load_yaml

Spec = TrainingSpec | Mapping[str, Any] | str
"""What `submit` takes: a spec, plain data, or YAML text."""

_NO_SPEC = (
    'a spec is a mapping of fields, and a text is taken as YAML: for that of a file give Path("spec.yaml").read_text()'
)


def spec_body(spec: Spec) -> tuple[bytes, str]:
    """The content of a request, and its type.

    Raises:
        InvalidRequestError: it is no spec.
    """
    if isinstance(spec, str):
        # What is no YAML, the service tells of.
        with suppress(SpecError):
            plain_spec(spec)
        return spec.encode(), "application/yaml"
    return json_body(plain_spec(spec)), "application/json"


def plain_spec(spec: Spec) -> Mapping[str, Any]:
    """The spec as data.

    Raises:
        InvalidRequestError: it is no spec.
        SpecError: the text is not YAML.
    """
    if isinstance(spec, TrainingSpec):
        return dump_spec(spec)
    document = load_yaml(spec) if isinstance(spec, str) else spec
    if not isinstance(document, Mapping):
        raise InvalidRequestError(_NO_SPEC)
    return document


def json_body(document: Mapping[str, Any]) -> bytes:
    """Raises InvalidRequestError: JSON has no word for something in it."""
    try:
        return json.dumps(document, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        problems = [Problem(param=path, message=_no_data(value)) for path, value in _unsayable(document)]
        first = problems[0] if problems else Problem(param="", message=f"the spec is not plain JSON data: {error}")
        raise InvalidRequestError(first.message, problems=problems, param=first.param or None) from None


def _no_data(value: Any) -> str:
    found = value if isinstance(value, float) else type(value).__name__
    return f"must be a text, a finite number or other plain JSON data, not {found}"


def _unsayable(value: Any, path: str = "", around: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The places of what JSON has no word for; `around`: the ids of what the value stands in."""
    if isinstance(value, dict | list | tuple) and id(value) not in around:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _unsayable(item, f"{path}.{key}" if path else str(key), (*around, id(value)))
        return
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        yield path, value
