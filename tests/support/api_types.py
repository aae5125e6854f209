"""`python -m tests.support.api_types FILE`: write TypeScript types of the API's documents, from the OpenAPI document.

The type check of the dashboard's scripts uses them.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.api_reference import openapi_document

Schema = dict[str, Any]

HEAD = "// Written by tests.support.api_types from the OpenAPI document of the service. Do not edit.\n\n"
_SIMPLE = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_REQUEST = re.compile(r"(Request|Changes|-Input|Report)$")


def declarations(document: Schema) -> str:
    """Return the namespace `Api`, which has an interface or a type for each schema of the document.

    Answers of the service have all their fields, also those with a default; requests may leave them out.
    """
    schemas: dict[str, Schema] = document["components"]["schemas"]
    types = [line for name in sorted(schemas) for line in _declaration(name, schemas[name])]
    return HEAD + "declare namespace Api {\n" + "".join(f"  {line}\n" for line in types) + "}\n"


def _declaration(name: str, schema: Schema) -> Iterator[str]:
    if "properties" not in schema:
        yield f"type {_name(name)} = {type_of(schema)};"
        return
    is_request, required = bool(_REQUEST.search(name)), set(schema.get("required", ()))
    yield f"interface {_name(name)} {{"
    for field, value in schema["properties"].items():
        mark = "?" if is_request and field not in required else ""
        yield f"  {json.dumps(field)}{mark}: {type_of(value)};"
    yield "}"


def type_of(schema: Schema) -> str:
    """Return the type of a value of the schema; `any` where the schema permits every value."""
    if "$ref" in schema:
        return _name(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(map(type_of, options)))
    if schema.get("type") == "array":
        return _array(schema)
    if schema.get("type") == "object":
        return _object(schema)
    return _SIMPLE.get(schema.get("type", ""), "any")


def _array(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(map(type_of, schema['prefixItems']))}]"
    return f"Array<{type_of(schema.get('items', {}))}>"


def _object(schema: Schema) -> str:
    values = [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
    types = dict.fromkeys(type_of(value) for value in values if isinstance(value, dict))
    return f"Record<string, {' | '.join(types) or 'any'}>"


def _name(name: str) -> str:
    return re.sub(r"\W", "_", name).rstrip("_")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(declarations(openapi_document()))
