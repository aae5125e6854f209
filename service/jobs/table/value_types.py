"""The possible values of a key, and the comparisons of a query that none of its values can meet. Pure functions."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from service.jobs.table.values import MAX_TEXT, Named
from trainyard.contract.job_query import Comparison, Duration, Key, Membership, QueryError, Value
from trainyard.contract.parameter_text import parse_number
from trainyard.contract.spec.training_spec import TrainingSpec

Type = Literal["number", "boolean", "text"]

_TYPES: Mapping[Any, Type] = {bool: "boolean", int: "number", float: "number"}
_EQUALITY = ("=", "!=", "in")
_CONTAINS = ("~", "!~")


@dataclass(frozen=True)
class ValueTypes:
    """The types of a key's values, and the texts that they can be besides."""

    types: frozenset[Type]
    choices: tuple[str, ...] = ()


_NUMBERS = ValueTypes(frozenset({"number"}), ("NaN", "Infinity", "-Infinity"))
_TEXTS = ValueTypes(frozenset({"text"}))
_ANY = ValueTypes(frozenset({"number", "boolean", "text"}))


def value_types(named: Named) -> ValueTypes:
    """Return the types of the values of a key."""
    kind, name = named
    if kind == "spec":
        fields = _types_by_field()
        maps = (of_field for path, of_field in fields.items() if path.endswith(".") and name.startswith(path))
        return fields.get(name) or next(maps, _ANY)
    return _ANY if kind == "parameter" else _TEXTS if kind == "tag" else _NUMBERS


def spec_fields() -> Collection[str]:
    """Return the fields that a spec can have, by dotted path."""
    return [path for path in _types_by_field() if not path.endswith(".")]


def check_comparison(node: Comparison | Membership, named: Named) -> None:
    """Check that a value of the key can meet the comparison. Raises QueryError: none can."""
    kind, _ = named
    expected = value_types(named)
    operator = node.operator if isinstance(node, Comparison) else "in"
    for value in node.values if isinstance(node, Membership) else (node.value,):
        if expected.types == {"number"}:
            if kind == "spec" and isinstance(value, Duration):
                raise QueryError(
                    f"`{node.key}` is not a duration; compare it with a number without a unit", node.key.column
                )
            _check_number(value, operator, node.key, expected.choices)
        elif expected.types == {"boolean"}:
            if operator not in _EQUALITY or as_text(value) not in ("true", "false"):
                raise QueryError(f"`{node.key}` is true or false; compare it by = with either", node.key.column)
        elif not expected.types:
            _check_choice(value, operator, node.key, expected.choices)
        elif expected.types == {"text"} and operator not in (*_EQUALITY, *_CONTAINS) and is_number(value):
            raise QueryError(f"`{node.key}` is a text; compare it by =, !=, ~ or in", node.key.column)


def check_choice(text: str, choices: Sequence[str], what: str, key: Key, known_as: Mapping[str, str] = {}) -> None:
    """Check that a text is a valid choice.

    Args:
        what: The name of the kind of choice, such as `status`.
        known_as: Choices by other names for them.

    Raises:
        QueryError: it is not a choice; the error proposes the nearest.
    """
    if text in choices:
        return
    lower = text.lower()
    near = [known_as[lower]] if lower in known_as else get_close_matches(lower, choices, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(choices)}"
    raise QueryError(f"no {what} is `{text[:80]}`; {hint}", key.column)


def as_text(value: Value) -> str:
    """Return a value as texts of jobs have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Duration):
        return f"{value.seconds:g}"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return value[:MAX_TEXT]


def as_number(value: Value) -> float | None:
    """Return the number that a value is, or that its text is."""
    if isinstance(value, Duration):
        return value.seconds
    if isinstance(value, str):
        return parse_number(value)
    return None if isinstance(value, bool) else value


def is_number(value: Value) -> bool:
    return as_number(value) is not None


def _check_number(value: Value, operator: str, key: Key, choices: Sequence[str]) -> None:
    if operator in _CONTAINS:
        raise QueryError(f"`{key}` is a number; compare it by =, < or >", key.column)
    if not is_number(value) and not (value in choices and operator in _EQUALITY):
        text = as_text(value)[:80]
        raise QueryError(f"`{key}` is a number; compare it with one such as 0.5, not with `{text}`", key.column)


def _check_choice(value: Value, operator: str, key: Key, choices: Sequence[str]) -> None:
    if operator in _EQUALITY:
        check_choice(as_text(value), choices, f"`{key}`", key)
    elif operator not in _CONTAINS:
        raise QueryError(f"`{key}` has no order; compare it by =, !=, ~ or in", key.column)


@cache
def _types_by_field() -> Mapping[str, ValueTypes]:
    """Return the types of each field of a spec; a path that ends with a dot stands for any name in a map."""
    fields: dict[str, ValueTypes] = {}
    for path, annotation in _fields_of(TrainingSpec, ""):
        of_field = _types_of(annotation)
        known = fields.get(path, of_field)  # the fields of a section depend on what it selects
        fields[path] = ValueTypes(
            known.types | of_field.types, tuple(dict.fromkeys((*known.choices, *of_field.choices)))
        )
    return fields


def _types_of(annotation: Any) -> ValueTypes:
    """Return the types of the stored values of a field, and its texts that are constants."""
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if annotation in _TYPES:
        return ValueTypes(frozenset({_TYPES[annotation]}))
    if annotation is type(None):
        return ValueTypes(frozenset())
    if origin is Literal:
        texts = tuple(value for value in arguments if isinstance(value, str))
        return ValueTypes(frozenset({"number"} if len(texts) < len(arguments) else ()), texts)
    if origin is Annotated:
        return _types_of(arguments[0])
    if origin in (Union, UnionType):
        parts = [_types_of(each) for each in arguments]
        return ValueTypes(
            frozenset(one for part in parts for one in part.types), tuple(one for part in parts for one in part.choices)
        )
    return _TEXTS  # lists are stored as texts


def _fields_of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        sections = list(_models_in(info.annotation))
        if get_origin(info.annotation) is dict:
            _, of_values = get_args(info.annotation)
            if not list(_models_in(of_values)):
                yield f"{path}.", of_values
        elif not sections:
            yield path, info.annotation
        for inner in sections:
            yield from _fields_of(inner, f"{path}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a field can be, except for sections in a list, which is stored as a text, or in a map."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    if get_origin(annotation) not in (tuple, dict):
        for argument in getattr(annotation, "__args__", ()):
            yield from _models_in(argument)
