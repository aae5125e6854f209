"""Changes of a section's kind in the resolved spec of a job, such as another optimizer. Pure functions."""

from collections.abc import Collection, Mapping
from typing import Any

from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.ineffective_fields import ineffective_fields
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec

_SECTIONS = ("model", "data", "optimizer", "schedule")
_KIND_FIELDS = ("source", "name")
"""Fields that determine which other fields a section has, and their defaults."""


def drop_values_of_former_kinds(
    source: Mapping[str, Any], changed: Mapping[str, Any], chosen: Collection[str]
) -> dict[str, Any]:
    """Return the changed spec without the values of a section's former kind.

    A job's spec has a value for every field. In a section whose kind changes, a value that is the former kind's
    default, or that the new kind refuses, would act as if the user had set it.

    Args:
        source: The job's spec.
        changed: The spec with the user's changes.
        chosen: Paths of the fields that the user set.
    """
    sections = [name for name in _SECTIONS if _has_other_kind(source.get(name), changed.get(name))]
    try:
        defaults = _section_defaults(parse_spec(source), sections)
    except SpecError:
        return dict(changed)
    result = dict(changed)
    for name in sections:
        result[name] = {
            field: value
            for field, value in changed[name].items()
            if field in _KIND_FIELDS or f"{name}.{field}" in chosen or defaults[name].get(field, _NO_VALUE) != value
        }
    # Some problems are found only after all others are solved.
    for _ in range(2):
        for problem in _problems(result):
            name, _, field = problem.param.partition(".")
            if name in sections and field in result[name] and problem.param not in chosen:
                del result[name][field]
    return result


_NO_VALUE = object()


def default_values(spec: TrainingSpec, section: str) -> dict[str, Any]:
    """Return the values that the section of this kind has where a spec does not set them, as JSON data."""
    values = getattr(spec, section)
    fields = type(values).model_fields
    given = {name: getattr(values, name) for name in fields if name in _KIND_FIELDS or fields[name].is_required()}
    return dict(type(values).model_validate(given).model_dump(mode="json", by_alias=True))


def _section_defaults(spec: TrainingSpec, sections: Collection[str]) -> dict[str, dict[str, Any]]:
    return {name: default_values(spec, name) for name in sections}


def _has_other_kind(before: Any, after: Any) -> bool:
    sections = isinstance(before, dict) and isinstance(after, dict)
    return sections and any(before.get(field) != after.get(field) for field in _KIND_FIELDS)


def _problems(document: Mapping[str, Any]) -> list[Problem]:
    try:
        return ineffective_fields(parse_spec(document))
    except SpecError as error:
        return list(error.problems)
