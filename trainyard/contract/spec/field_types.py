"""Finds the fields of a spec that accept only text, so that a value such as `1` is read as text."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from trainyard.contract.spec.training_spec import TrainingSpec


def is_text(path: str) -> bool:
    """Return whether the field at the path accepts only text, or lists and mappings of text."""
    kinds: list[Any] = [TrainingSpec]
    for part in path.split("."):
        kinds = [inner for kind in kinds for inner in _inside(kind, part)]
    return bool(kinds) and all(map(_holds_text, kinds))


def _inside(kind: Any, name: str) -> list[Any]:
    """Return the types that a value with this name may have inside a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return [one for key, field in fields if name == (field.alias or key) for one in _kinds(field.annotation)]
    return _kinds(get_args(kind)[1]) if get_origin(kind) is dict else []


def _kinds(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation without `None`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(inner[0])
    if origin in (Union, UnionType):
        return [kind for one in inner for kind in _kinds(one)]
    return [] if annotation is NoneType else [annotation]


def _holds_text(kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return all(isinstance(value, str) for value in inner)
    if origin in (dict, list, tuple):
        return all(_holds_text(one) for part in inner if part is not Ellipsis for one in _kinds(part))
    return kind is str
