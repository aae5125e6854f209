"""Proposed changes of a job's spec as differences, and the changed spec. Pure functions."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from trainyard.contract.base import field_description
from trainyard.contract.spec.changes import changed_document, problems_of_change
from trainyard.contract.spec.spec_diff import differing_paths, flatten
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec, fields_reset_by
from trainyard.contract.wire.jobs import Fix, ProposedChange, SpecChange

_ABSENT = "absent"
"""The value of a field that is null, as in the reference of the spec."""


@dataclass(frozen=True)
class StaleChange:
    """A change of a field that has another value by now."""

    field: str
    before: Any
    """The value that the change names."""
    now: Any


def start_of_fork(spec: TrainingSpec, job_id: str, step: int | None) -> dict[str, Any]:
    """Return the fields with which a changed copy of a job starts: from the job's checkpoint, or as the job did."""
    document = dump_spec(spec)
    start: dict[str, Any] = {} if step is None else {"resume_from": f"{job_id}:{step}", "resume": "state"}
    return {name: value for name, value in {**start, "after": []}.items() if document.get(name) != value}


def accepted_fixes(spec: TrainingSpec, fixes: Iterable[Fix], start: Mapping[str, Any]) -> list[Fix]:
    """Return the fixes with which a copy of the spec is accepted and fits its checkpoint, each as a difference.

    Args:
        start: Fields with which the copy starts.
    """
    continues = start.get("resume_from", spec.resume_from) is not None
    return [
        fix.model_copy(update={"changes": differences(spec, {**fix.fields, **start})})
        for fix in fixes
        if not problems_of_change(spec, fix.fields, continues=continues)
    ]


def differences(spec: TrainingSpec, fields: Mapping[str, Any]) -> list[SpecChange]:
    """Return the fields in which the changed spec differs from the spec, in the order of `fields`."""
    before, after = dump_spec(spec), changed_document(spec, fields)
    paths = dict.fromkeys([*fields, *fields_reset_by(fields)])
    return [
        SpecChange(field=path, before=old, after=new, meaning=meaning_of(path))
        for path in paths
        if (old := value_at(before, path)) != (new := value_at(after, path))
    ]


def document_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[SpecChange]:
    """Return the fields in which two specs differ, without names and labels."""
    old, new = flatten(before), flatten(after)
    return [
        SpecChange(field=path, before=old.get(path), after=new.get(path), meaning=meaning_of(path))
        for path in differing_paths([old, new])
    ]


def apply_changes(spec: TrainingSpec, changes: Sequence[ProposedChange]) -> tuple[dict[str, Any], list[StaleChange]]:
    """Return the changed spec as a document, and the changes whose fields have other values than the changes name."""
    document = dump_spec(spec)
    current = [(change, value_at(document, change.field)) for change in changes]
    stale = [StaleChange(change.field, change.before, now) for change, now in current if now != change.before]
    return changed_document(spec, {change.field: change.after for change in changes}), stale


def value_at(document: Any, path: str) -> Any:
    """Return the value of a field by its path; None if there is none."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def spec_text(value: Any) -> str:
    """Return a value of a field as a spec writes it, complete and in one line."""
    if value is None:
        return _ABSENT
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


_SENTENCE = re.compile(r"(?<=[.;:])\s")


@cache
def meaning_of(path: str) -> str:
    """Return the first sentence about a field, or else about its section; "" for a path that the spec has not."""
    models: list[type[BaseModel]] = [TrainingSpec]
    *sections, name = path.split(".")
    for section in sections:
        models = [
            inner
            for model, field_name in _fields(models, section)
            for inner in _models(model.model_fields[field_name].annotation)
        ]
    for model, field_name in _fields(models, name):
        annotation = model.model_fields[field_name].annotation
        texts = [field_description(model, field_name), *(inner.__doc__ for inner in _models(annotation))]
        if text := next(filter(None, texts), None):
            return _SENTENCE.split(" ".join(text.split()), maxsplit=1)[0].rstrip(";:")
    return ""


def _fields(models: list[type[BaseModel]], name: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the models that have a field of this name, each with the field's name in the model."""
    for model in models:
        for field_name, field in model.model_fields.items():
            if name in (field_name, field.alias):
                yield model, field_name


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation: the kinds of a section, without `None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
