"""Specs as text that a person edits: YAML, without what every spec has by default. Pure."""

from collections.abc import Mapping
from typing import Any

import yaml

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.training_spec import parse_spec


def spec_yaml(document: Mapping[str, Any]) -> str:
    """One line a section, as in the presets."""
    text: str = yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    return text


def brief_spec(document: Mapping[str, Any]) -> dict[str, Any]:
    """A job's spec less its defaults; as it is where it would then no longer be the same spec.

    Model and data stay whole: by what they are is told which fields they have.
    """
    try:
        spec = parse_spec(dict(document))
        short = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        whole = {name: document[name] for name in ("model", "data") if document.get(name) is not None}
        brief = {name: whole.get(name, value) for name, value in short.items()}
        same = parse_spec(brief) == spec
    except SpecError:
        return dict(document)
    return {"version": spec.version, **brief} if same else dict(document)
