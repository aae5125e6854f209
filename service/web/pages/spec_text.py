"""Specs as YAML for editing, without default values. Pure functions."""

from collections.abc import Mapping
from typing import Any

import yaml

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.kind_changes import default_values
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.spec.yaml_loader import load_yaml


class _Quoted(str):
    """A string that is written in quotes."""


class _Dumper(yaml.SafeDumper):
    """Writes the strings of variables in quotes."""


_Dumper.add_representer(
    _Quoted, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style='"')
)


def spec_yaml(document: Mapping[str, Any]) -> str:
    """Return a spec as YAML, a line for each section, as in the presets.

    Environment variables are in quotes, so that another number in place of theirs is a string too.
    """
    shown = _with_quoted_variables(document)
    text: str = yaml.dump(
        shown, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100
    )
    return text


def _with_quoted_variables(document: Mapping[str, Any]) -> dict[str, Any]:
    environment = document.get("environment")
    if not isinstance(environment, dict) or not isinstance(variables := environment.get("variables"), dict):
        return dict(document)
    quoted = {name: _Quoted(value) if isinstance(value, str) else value for name, value in variables.items()}
    return {**document, "environment": {**environment, "variables": quoted}}


def brief_spec(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's spec without its defaults, or unchanged if the result would not be the same spec.

    `model` and `data` stay complete, since the fields that they may have depend on their values. The defaults of an
    optimizer depend on its name.
    """
    try:
        spec = parse_stored_spec(document)
        short = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        if optimizer := short.get("optimizer"):
            defaults = default_values(spec, "optimizer")
            short["optimizer"] = {name: v for name, v in optimizer.items() if name == "name" or v != defaults[name]}
        complete = {name: document[name] for name in ("model", "data") if document.get(name) is not None}
        brief = {name: complete.get(name, value) for name, value in short.items()}
        same = parse_spec(brief) == spec
    except SpecError:
        return dict(document)
    return {"version": spec.version, **brief} if same else dict(document)


def longer(document: dict[str, Any]) -> str | None:
    """Double the length of a run in its spec; return the field, or None if the length follows from the data."""
    for name in ("steps", "epochs"):
        value = document.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            document[name] = value * 2
            return name
    return None


def set_field(document: dict[str, Any], path: str, text: str) -> None:
    """Set the field with this path to a value in YAML; nothing happens if the text is none, or the path leads through
    a value that has no fields."""
    try:
        value = load_yaml(text)
    except SpecError:
        return
    *sections, name = path.split(".")
    for section in sections:
        inner = document.setdefault(section, {})
        if not isinstance(inner, dict):
            return
        document = inner
    document[name] = value
