"""Validation problems: the path of a field, and a sentence that explains the necessary change. Pure functions."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trainyard.contract.validation_messages import describe_error

_UNION_TAGS = {
    "model": {"hf", "gpt", "llama", "convnet", "mlp"},
    "data": {"builtin", "jsonl", "parquet", "arrow", "dataset", "mixture", "file", "images"},
    "targets": {"auto", "names"},
}
_SOURCE_TAG = "source: "
_PATHS_TAGS = {"one path", "list of paths", f"{_SOURCE_TAG}jsonl", f"{_SOURCE_TAG}file"}
"""Tags of fields that take a path, several paths, or a source. No field or name has a space."""

MAX_PROBLEMS = 100
"""Maximum number of listed problems of a document."""
_MAX_SUGGESTIONS = 10
"""Unknown fields for which a similar name is searched."""
_MAX_LISTED_NAMES = 20
_NO_ADVICE: Mapping[str, str] = MappingProxyType({})
_MAX_COMPARED = 500
"""Maximum number of names that are compared with an unknown name. A deep model has thousands of names, which differ
only in a number."""


class Problem(BaseModel):
    """One problem of a document."""

    model_config = ConfigDict(frozen=True)

    param: str
    """Dotted path of the field, `optimizer.lr`; empty for the document as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.param}: {self.message}" if self.param else self.message


class SpecError(ValueError):
    """An invalid document, with all its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def problems_of(
    error: ValidationError, *, model: type[BaseModel] | None = None, advice: Mapping[str, str] = _NO_ADVICE
) -> list[Problem]:
    """Convert the first `MAX_PROBLEMS` errors of pydantic.

    Args:
        model: For suggestions: the messages for the first unknown fields suggest a similar field of this model.
        advice: Remedies by the path of an unknown field.
    """
    problems: list[Problem] = []
    unknown = 0
    for detail in error.errors(include_url=False, include_input=False):
        inner = detail.get("ctx", {}).get("error")
        if isinstance(inner, SpecError):
            problems.extend(inner.problems)
        else:
            unknown += detail["type"] == "extra_forbidden"
            suggest = model if unknown <= _MAX_SUGGESTIONS else None
            path = _path(detail["loc"])
            advised = detail["type"] == "extra_forbidden" and path in advice
            message = f"unknown field; {advice[path]}" if advised else _message(detail, suggest)
            problems.append(Problem(param=path, message=message))
        if len(problems) >= MAX_PROBLEMS:
            more = error.error_count() - len(problems)
            return [*problems, Problem(param="", message=f"and {more} more problems")] if more > 0 else problems
    return problems


def _path(loc: tuple[int | str, ...]) -> str:
    parts: list[str] = []
    for part in loc:
        if parts and (str(part) in _UNION_TAGS.get(parts[-1], ()) or part in _PATHS_TAGS):
            continue
        if part != "[key]":  # pydantic's mark of a name that is invalid itself
            parts.append(str(part))
    return ".".join(parts)


def _message(detail: ErrorDetails, model: type[BaseModel] | None) -> str:
    if detail["type"] != "extra_forbidden":
        return describe_error(detail)
    near = _nearest(detail, model) if model else None
    return "unknown field" + (f"; did you mean `{near}`?" if near else "")


def _nearest(detail: ErrorDetails, model: type[BaseModel]) -> str | None:
    """Return the path of a known field to suggest: for an unknown top-level field, a field of the same name in a
    section; otherwise a field with a similar name in the same section."""
    *parents, name = detail["loc"]
    inside = ((section, _model_at(model, [section])) for section in _names(model) if not parents)
    if matches := [f"{section}.{name}" for section, inner in inside if inner is not None and name in _names(inner)]:
        return "` or `".join(matches)
    section_model = _model_at(model, parents)
    sections = [part for part in _path(tuple(parents)).split(".") if part]
    if section_model and (near := get_close_matches(str(name), _names(section_model), n=1)):
        return ".".join([*sections, near[0]])
    return None


def _model_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model of the section at `loc`, where pydantic adds a tag to select the member of a union."""
    models: list[type[BaseModel]] = [model]
    for part in loc:
        if isinstance(part, int):
            continue
        if len(models) > 1:
            models = [one for one in models if part in _tags(one)]
            continue
        field = _field(models[0], str(part)) if models else None
        models = _models(field.annotation) if field else []
    return models[0] if len(models) == 1 else None


def _field(model: type[BaseModel], name: str) -> FieldInfo | None:
    return next((field for key, field in model.model_fields.items() if name in (key, field.alias)), None)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that an annotation permits."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in _models(part)]


def _tags(model: type[BaseModel]) -> set[Any]:
    """Return the values of `source` and `name` that identify a model in its union."""
    fields = (field for key, field in model.model_fields.items() if key in ("source", "name"))
    values = {value for field in fields for value in get_args(field.annotation)}
    return values | {f"{_SOURCE_TAG}{value}" for value in values}


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def nearest_names(name: str, names: Collection[str], count: int = 5) -> str:
    """Return suggestions for an unknown name, for a message: all names if there are at most 20, else the `count` most
    similar names, or the first `count` if none is similar."""
    ordered = list(names)
    if len(ordered) <= _MAX_LISTED_NAMES:
        return ", ".join(ordered)
    near = get_close_matches(name, ordered[:_MAX_COMPARED], n=count, cutoff=0.3) or ordered[:count]
    more = f" and {len(ordered) - len(near)} more" if len(ordered) > len(near) else ""
    return ", ".join(near) + more
