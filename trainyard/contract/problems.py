"""Validation problems: the path of a field, and a sentence that explains what to change. Pure functions."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trainyard.contract.validation_messages import describe_error

_UNION_TAGS = {
    "model": {"hf", "gpt", "convnet", "mlp"},
    "data": {"builtin", "jsonl"},
    "targets": {"auto", "names"},
    "micro_size": {"int", "literal['auto']", "constrained-int"},
}

_FEW_NAMES = 20


class Problem(BaseModel):
    """One thing that is wrong."""

    model_config = ConfigDict(frozen=True)

    param: str
    """Dotted path of the field, `optimizer.lr`; empty for the document as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.param}: {self.message}" if self.param else self.message


class SpecError(ValueError):
    """A document that cannot be accepted. Carries every problem found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def problems_of(error: ValidationError, *, model: type[BaseModel] | None = None) -> list[Problem]:
    """pydantic's findings as problems; with the model, an unknown field gets the nearest known one suggested."""
    found: list[Problem] = []
    for detail in error.errors():
        inner = detail.get("ctx", {}).get("error")
        if isinstance(inner, SpecError):
            found.extend(inner.problems)
        else:
            found.append(Problem(param=_path(detail["loc"]), message=_message(detail, model)))
    return found


def _path(loc: tuple[int | str, ...]) -> str:
    parts: list[str] = []
    for part in loc:
        if parts and str(part) in _UNION_TAGS.get(parts[-1], ()):
            continue
        parts.append(str(part))
    return ".".join(parts)


def _message(detail: ErrorDetails, model: type[BaseModel] | None) -> str:
    if detail["type"] != "extra_forbidden":
        return describe_error(detail)
    near = _nearest(detail, model) if model else None
    return "unknown field" + (f"; did you mean `{near}`?" if near else "")


def _nearest(detail: ErrorDetails, model: type[BaseModel]) -> str | None:
    """The path of the known field that was meant: at the top level one of this very name in a section, else one that
    is spelt alike where the unknown one stands."""
    *place, name = detail["loc"]
    inside = ((section, _model_at(model, [section])) for section in _names(model) if not place)
    if found := [f"{section}.{name}" for section, inner in inside if inner is not None and name in _names(inner)]:
        return "` or `".join(found)
    where = _model_at(model, place)
    sections = [part for part in _path(tuple(place)).split(".") if part]
    if where is not None and (near := get_close_matches(str(name), _names(where), n=1)):
        return ".".join([*sections, near[0]])
    return None


def _model_at(model: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel] | None:
    """The section that stands there. In a union of sections, the tag that pydantic puts into the place says which."""
    found: list[type[BaseModel]] = [model]
    for part in place:
        if len(found) > 1:
            found = [one for one in found if part in _tags(one)]
            continue
        field = _field(found[0], str(part)) if found else None
        found = _models(field.annotation) if field else []
    return found[0] if len(found) == 1 else None


def _field(model: type[BaseModel], name: str) -> FieldInfo | None:
    return next((field for key, field in model.model_fields.items() if name in (key, field.alias)), None)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field can be."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in _models(part)]


def _tags(model: type[BaseModel]) -> set[Any]:
    """What tells a section from the others of its union: the values that its `source` and `name` can have."""
    fields = (field for key, field in model.model_fields.items() if key in ("source", "name"))
    return {value for field in fields for value in get_args(field.annotation)}


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def nearest_names(name: str, names: Collection[str], count: int = 5) -> str:
    """Return suggestions for an unknown name, for a message: all names if there are at most 20, else the `count` most
    similar ones, or the first `count` if none is similar."""
    ordered = list(names)
    if len(ordered) <= _FEW_NAMES:
        return ", ".join(ordered)
    near = get_close_matches(name, ordered, n=count, cutoff=0.3) or ordered[:count]
    more = f" and {len(ordered) - len(near)} more" if len(ordered) > len(near) else ""
    return ", ".join(near) + more
