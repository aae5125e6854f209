"""Specs that another release has stored, as after an upgrade or a rollback under unfinished jobs."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from trainyard.contract.spec.sections import Restart
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec


def parse_stored_spec(document: Mapping[str, Any]) -> TrainingSpec:
    """Parse the spec of a stored job, without the fields of a later release that the job does not use.

    Raises:
        SpecError: it uses such a field, or is invalid.
    """
    try:
        return TrainingSpec.model_validate(document)
    except ValidationError as error:
        return parse_spec(without_fields(document, unused_fields(error)))


def stored_restart(document: Mapping[str, Any]) -> Restart:
    """Return the section `restart` of a stored spec, whatever else a later release has added to it."""
    section = document.get("restart", {})
    return Restart.model_validate({name: value for name, value in section.items() if name in Restart.model_fields})


def unused_fields(error: ValidationError) -> list[tuple[int | str, ...]]:
    """Return the paths of unknown fields that are empty."""
    return [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden" and not each["input"]]


def without_fields(document: Mapping[str, Any], paths: Sequence[tuple[int | str, ...]]) -> dict[str, Any]:
    """Return a copy of a document without the fields at these paths."""
    copied = deepcopy(dict(document))
    for path in paths:
        node: Any = copied
        for part in path[:-1]:
            # A path may name the kind of a section, which is not part of the document.
            node = node[part] if isinstance(part, int) or part in node else node
        node.pop(path[-1], None)
    return copied
