"""Completes the examples of the OpenAPI document.

A field can have `examples`, and a model an example of some fields (`base.example`). The rest follows from the schema,
and from the name of a field: it has the same example wherever it is required.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainyard.contract.base import EXAMPLE_ATTEMPT, EXAMPLE_DIGEST, EXAMPLE_JOB, EXAMPLE_TIME

_BY_NAME: Mapping[str, Any] = MappingProxyType(
    {
        "created_by": "anna",
        "digest": EXAMPLE_DIGEST,
        "id": EXAMPLE_ATTEMPT,
        "job_id": EXAMPLE_JOB,
        "key": "train/loss",
        "message": "warmed up",
        "name": "anna",
        "scheduler": "slurm",
        "size_bytes": 481_000,
        "step": 200,
        "value": 0.5,
        "world_size": 2,
    }
)
"""Values of required fields."""

Schema = dict[str, Any]


def add_examples(document: Schema) -> None:
    """Complete the examples of models, and add an example to each JSON body, in its schema or else beside it."""
    schemas: Schema = document["components"]["schemas"]
    described = {name for name, schema in schemas.items() if _given(schema)}
    for operation in (one for verbs in document["paths"].values() for one in verbs.values()):
        answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        for body in (operation.get("requestBody", {}), *answers):
            content = body.get("content", {}).get("application/json", {"schema": {}})
            if "properties" in content["schema"]:
                content["example"] = example_of(content["schema"], schemas)
            described |= _names([content["schema"], *content["schema"].get("anyOf", ())])
    for name in described:
        schemas[name]["example"] = example_of(schemas[name], schemas)


def _names(schemas: list[Schema]) -> set[str]:
    return {schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema}


def example_of(schema: Schema, schemas: Schema, name: str = "") -> Any:
    """Return a value of the schema, or None if it cannot be derived.

    Args:
        name: The field that has the value.
    """
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    if "properties" in schema:
        return _object(schema, schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], schemas, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "array":
            item = example_of(schema.get("items", {}), schemas, name)
            return [] if item is None else [item]
        case "object":
            return example_of(schemas["TrainingSpec"], schemas) if name == "spec" else {}
        case "string" if name == "time" or name.endswith("_at"):
            return EXAMPLE_TIME
        case "boolean":
            return True
        case "integer" | "number":
            return _BY_NAME.get(name, 1)
    return _BY_NAME.get(name)


def _object(schema: Schema, schemas: Schema) -> Schema:
    """Return an object with its required fields and all that have an example; a page has the id of its item."""
    given = _given(schema)
    required = {name for name, field in schema["properties"].items() if "const" in field}
    made = {
        name: _complete(given[name], field, schemas) if name in given else example_of(field, schemas, name)
        for name, field in schema["properties"].items()
        if name in {*required, *schema.get("required", ()), *given}
    }
    if {"first_id", "last_id"} <= schema["properties"].keys() and made["data"]:
        end = made["data"][0].get("id")
        made |= {"first_id": end, "last_id": end, "has_more": False}
    return made


def _given(schema: Schema) -> Schema:
    """Return the values that the schema itself has: of its own example, or of a field."""
    fields = {name: field["examples"][0] for name, field in schema.get("properties", {}).items() if "examples" in field}
    own: Schema = schema.get("example", {})
    return fields | own


def _complete(value: Any, schema: Schema, schemas: Schema) -> Any:
    """Return a value of an own example, in which each object has the rest of the example of its schema."""
    alternatives = [schema, *schema.get("anyOf", ())]
    alternatives += [schemas[name] for name in _names(alternatives)]
    if isinstance(value, list):
        items: Schema = next((one["items"] for one in alternatives if "items" in one), {})
        return [_complete(item, items, schemas) for item in value]
    named = next((one for one in alternatives if "properties" in one), None)
    if not isinstance(value, dict) or named is None:
        return value
    return _object({**named, "example": {**named.get("example", {}), **value}}, schemas)
