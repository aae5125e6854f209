from typing import Any

import pytest

from tests.support.api_types import declarations, type_of


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}]}, "number | string | null"),
        ({"anyOf": [{"type": "number"}, {"type": "integer"}]}, "number"),
        ({"$ref": "#/components/schemas/Page_Job-Input_"}, "Page_Job_Input"),
        ({"enum": ["a", "b"]}, '"a" | "b"'),
        ({"const": "job"}, '"job"'),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, 'Array<"a" | "b">'),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]}, "[string, number]"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "Record<string, number>"),
        ({"type": "object", "additionalProperties": True}, "Record<string, any>"),
        ({}, "any"),
    ],
)
def test_a_schema_becomes_a_type(schema: Any, expected: str) -> None:
    assert type_of(schema) == expected


def test_an_answer_has_all_fields_and_a_request_those_required() -> None:
    fields = {"properties": {"id": {"type": "string"}, "note": {"type": "string"}}, "required": ["id"]}
    text = declarations({"components": {"schemas": {"Job": fields, "JobRequest": fields, "Any": {}}}})
    assert 'interface Job {\n    "id": string;\n    "note": string;\n  }' in text
    assert 'interface JobRequest {\n    "id": string;\n    "note"?: string;\n  }' in text
    assert "type Any = any;" in text
