"""Generate the Markdown reference of the spec: `python -m trainyard.contract.spec.reference`."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from trainyard.contract.spec.training_spec import TrainingSpec

_HEAD = """# The training spec

`make docs` generates this page from the docstrings of the spec; do not edit it. A spec is YAML or JSON. Every field has
a default, except those marked *required*. `1e-4` is a number, as in YAML 1.2. Unknown fields are rejected, and so are
fields that have no effect in the given spec.
"""

Schema = dict[str, Any]


def reference() -> str:
    """Return the whole page."""
    schema = TrainingSpec.model_json_schema()
    sections: Schema = schema.pop("$defs")
    parts = [_HEAD, "## Top level\n", table(schema, sections)]
    parts += [part for name in _order(schema, sections) for part in _section(name, sections)]
    return "\n".join(parts).rstrip() + "\n"


def _section(name: str, sections: Schema) -> list[str]:
    schema = sections[name]
    return [f"## {name}\n", schema.get("description", "") + "\n", table(schema, sections)]


def _order(schema: Schema, sections: Schema) -> list[str]:
    """Return the sections in the order in which the top level refers to them, without duplicates."""
    names: list[str] = []
    for field in schema["properties"].values():
        names += [name for name in _references(field) if name not in names]
    for name in list(names):
        inner = (ref for field in sections[name].get("properties", {}).values() for ref in _references(field))
        names += [ref for ref in inner if ref not in names]
    return names


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for key, value in schema.items():
            if key != "discriminator":
                yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def table(schema: Schema, sections: Schema) -> str:
    """Return a row for each field of an object's schema."""
    required = set(schema.get("required", ()))
    rows = ["| field | value | default | description |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "*required*" if name in required else _default(field)
        text = " ".join(_description(field, sections).split())
        rows.append(f"| `{name}` | {escaped(kind_of(field))} | {default} | {escaped(text)} |")
    return "\n".join(rows) + "\n"


def _description(field: Schema, sections: Schema) -> str:
    """Return the description of the field, or else of the section to which it refers."""
    section: Schema = sections.get(field.get("$ref", "").rpartition("/")[2], {})
    return str(field.get("description") or section.get("description", ""))


def _default(field: Schema) -> str:
    default = field.get("default")
    if isinstance(default, dict) or ("default" not in field):
        return ""
    return "absent" if default is None else f"`{json.dumps(default)}`"


def kind_of(field: Schema) -> str:
    """Return a description of the values that a field accepts."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in field:
            return " or ".join(dict.fromkeys(kind_of(part) for part in field[key] if part.get("type") != "null"))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    match field.get("type"):
        case "array":
            return _list(field)
        case "object":
            values: list[Schema] = list(field.get("patternProperties", {}).values())
            if isinstance(field.get("additionalProperties"), dict):
                values.append(field["additionalProperties"])
            if values and "oneOf" in values[0]:
                return f"names, each with {kind_of(values[0])}"
            return f"names and {_plural(values[0]) if values else 'values'}"
        case "integer" | "number":
            return _number(field)
        case "boolean":
            return "`true` or `false`"
        case "string" if field.get("format") == "date-time":
            return "time"
    return "text"


def _plural(schema: Schema) -> str:
    numbers = {schema.get("type"), *(one.get("type") for one in schema.get("anyOf", ()))} & {"integer", "number"}
    return "numbers" if numbers else "texts" if schema.get("type") == "string" else "values"


def _list(field: Schema) -> str:
    items: Schema = field.get("items") or next(iter(field.get("prefixItems", [])), {})
    many = f"{field['minItems']} " if field.get("minItems") and field.get("minItems") == field.get("maxItems") else ""
    return f"list of {many}{kind_of(items)}"


def _number(field: Schema) -> str:
    kind = "whole number" if field["type"] == "integer" else "number"
    low, high = field.get("minimum"), field.get("maximum")
    over, under = field.get("exclusiveMinimum"), field.get("exclusiveMaximum")
    bounds = [f"at least {_text(low)}"] if low is not None else [f"above {_text(over)}"] if over is not None else []
    if high is not None and high < 2**53:
        bounds.append(f"at most {_text(high)}")
    if under is not None:
        bounds.append(f"below {_text(under)}")
    return f"{kind}, {', '.join(bounds)}" if bounds else kind


def _text(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
