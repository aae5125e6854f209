"""Limits of the contract: of plain data, and of every field of every request model."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import trainyard.contract
from tests.support.cpu_limit import at_most
from trainyard.contract.base import Document, Strict
from trainyard.contract.bounds import MAX_DEPTH, MAX_SPEC_VALUES, check_plain_data, parse_json
from trainyard.contract.problems import MAX_PROBLEMS, SpecError
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.jobs import ChangesRequest
from trainyard.contract.wire.sweeps import SweepRequest

PLAIN_DATA = {
    "SweepRequest.spec",
    "SweepRequest.grid",
    "SweepRequest.members",
    "Choice.values",
    "Condition.values",
    "ProposedChange.before",
    "ProposedChange.after",
    "WorkerEvent.data",
}
"""Fields that hold any JSON; their depth and number of values are bounded by a validator."""

_UNBOUNDED_PATTERN = re.compile(r"(?<!\\)[*+]|\{\d+,\}")


def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def contract_models() -> list[type[BaseModel]]:
    for module in pkgutil.walk_packages(trainyard.contract.__path__, "trainyard.contract."):
        importlib.import_module(module.name)
    unique = {
        model for base in (Strict, Document) for model in models(base) if model.__module__.startswith("trainyard.")
    }
    return sorted(unique, key=lambda model: model.__name__)


def unbounded(schema: Any, path: str) -> Iterator[str]:
    """The parts of a JSON schema that have no bound. Sections are models of their own."""
    if not isinstance(schema, dict) or "$ref" in schema or {"enum", "const"} & schema.keys():
        return
    for keyword in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(keyword, ()):
            yield from unbounded(part, path)
    kind = schema.get("type")
    if kind is None and not {"anyOf", "oneOf", "allOf"} & schema.keys():
        yield f"{path}: any value"
    bounded_pattern = "pattern" in schema and not _UNBOUNDED_PATTERN.search(schema["pattern"])
    if kind == "string" and "maxLength" not in schema and schema.get("format") != "date-time" and not bounded_pattern:
        yield f"{path}: length"
    if (kind == "integer" and not {"minimum", "exclusiveMinimum"} & schema.keys()) or (
        kind == "integer" and "maximum" not in schema
    ):
        yield f"{path}: range"
    if kind == "array":
        if "maxItems" not in schema:
            yield f"{path}: number of items"
        for item in schema.get("prefixItems", [schema.get("items")]):
            yield from unbounded(item, f"{path}[]")
    if kind == "object" and "properties" not in schema:
        if "maxProperties" not in schema:
            yield f"{path}: number of entries"
        if "maxLength" not in schema.get("propertyNames", {}) and "patternProperties" not in schema:
            yield f"{path}: length of names"
        for value in [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]:
            yield from unbounded(value, f"{path}{{}}")


@pytest.mark.parametrize("model", contract_models(), ids=lambda model: model.__name__)
def test_every_field_of_a_request_model_is_bounded(model: type[BaseModel]) -> None:
    fields = model.model_json_schema().get("properties", {})
    problems = [problem for name, schema in fields.items() for problem in unbounded(schema, f"{model.__name__}.{name}")]
    assert [problem for problem in problems if re.split(r"[:\[{]", problem)[0] not in PLAIN_DATA] == []


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"a": nested(MAX_DEPTH + 1)}},
        {"spec": {"a": [1] * (MAX_SPEC_VALUES + 1)}},
        {"spec": {str(number): 1 for number in range(MAX_SPEC_VALUES + 1)}},
        {"grid": {"seed": [nested(MAX_DEPTH + 1)]}},
        {"members": [{"seed": nested(MAX_DEPTH + 1)}], "grid": {}},
        {"members": [{f"metadata.a{number}": 1 for number in range(65)}], "grid": {}},
        {"spec": {"a": "\ud800"}},
        {"members": [{"name": "\udfff"}], "grid": {}},
    ],
)
def test_plain_data_of_a_sweep_is_bounded(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SweepRequest.model_validate({"spec": {}, "grid": {"seed": [1]}, **change})


class TestCheckPlainData:
    def test_data_within_the_bounds_is_accepted(self) -> None:
        check_plain_data({"a": nested(MAX_DEPTH - 1), "ключ": ["é", None, 1.5, True]})

    @pytest.mark.parametrize("value", [nested(MAX_DEPTH + 1), {"a": {"b": nested(MAX_DEPTH)}}, [1] * 50_000])
    def test_deep_and_large_data_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"nested deeper|values"):
            check_plain_data(value)

    @pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, [["a", {"b": "x\ud83d"}]]])
    def test_half_of_a_surrogate_pair_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match="surrogate"):
            check_plain_data(value)


@pytest.mark.parametrize("body", [b"[" * 900 + b"]" * 900, b"[" * 200_000, b'{"a":' * 100_000])
def test_deep_json_raises_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(body)


def test_many_unknown_fields_are_refused_quickly_with_few_problems() -> None:
    document = {f"optimizr{number}": 1 for number in range(50_000)}
    with at_most(2), pytest.raises(SpecError) as caught:
        parse_spec(document)
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert caught.value.problems[-1].message.endswith("more problems")
    assert sum("did you mean" in problem.message for problem in caught.value.problems) == 10


@pytest.mark.parametrize("value", [nested(MAX_DEPTH + 1), [1] * (MAX_SPEC_VALUES + 1), "\ud800"])
def test_values_of_a_change_are_bounded(value: Any) -> None:
    with pytest.raises(ValidationError):
        ChangesRequest.model_validate({"changes": [{"field": "seed", "before": value, "after": 1}]})
