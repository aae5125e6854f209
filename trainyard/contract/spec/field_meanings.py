"""What a field of the spec means, in the words of its reference. Pure functions."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from trainyard.contract.base import field_description
from trainyard.contract.spec.training_spec import TrainingSpec

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
