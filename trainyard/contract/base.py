"""The base classes of wire models, and shared field types."""

import ast
import inspect
import math
import re
import sys
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from trainyard.contract.validation_messages import MAX_VARIABLE_NAME, VARIABLE_PATTERN


def reject_bool(value: Any) -> Any:
    """Reject booleans, which Python accepts as numbers."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Float = Annotated[float, BeforeValidator(reject_bool), Field(allow_inf_nan=False)]
"""A finite number. Numeric strings are accepted, because YAML parses `1e-4` as a string."""

MAX_SAFE_INT = 2**53
"""The largest integer up to which every JSON parser is exact."""

# The bounds must precede the validator to be included in the JSON schema.
PositiveInt = Annotated[int, Field(ge=1, le=MAX_SAFE_INT), BeforeValidator(reject_bool)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_SAFE_INT), BeforeValidator(reject_bool)]
Step = NonNegativeInt
"""A number of completed steps, at most `MAX_SAFE_INT`."""
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(reject_bool)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(reject_bool)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(reject_bool)]


def one_of(expected: str) -> WrapValidator:
    """Return a validator for a union of simple types. It reports a single error that states all permitted values,
    instead of an error for each type.

    Args:
        expected: Completes the sentence "must be ...".
    """

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("one_of", "must be {expected}", {"expected": expected}) from None

    return WrapValidator(validate)


Path = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]

CONTROL_FREE_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"

_HIDDEN = r"\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
HIDDEN_CHARACTERS = rf"[{_HIDDEN}]"
_DISPLAY_PATTERN = rf"^[^{_HIDDEN}]*$"

MAX_DISPLAY_NAME = 120
DisplayName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_DISPLAY_NAME, pattern=_DISPLAY_PATTERN)]
"""A single line of text, for display; it is never passed to the scheduler. Characters that change the direction of
writing, or are invisible, could make it look like another name."""

MAX_SHORT_TEXT = 512
ShortText = Annotated[str, StringConstraints(max_length=MAX_SHORT_TEXT, pattern=CONTROL_FREE_PATTERN)]

MAX_SPEC_SECRETS = 16

VariableName = Annotated[str, StringConstraints(max_length=MAX_VARIABLE_NAME, pattern=VARIABLE_PATTERN)]
"""Name of an environment variable."""

SecretValue = Annotated[str, StringConstraints(min_length=1, max_length=16_384, pattern=r"^[^\x00]*$")]
"""Value of an environment variable; several lines are allowed."""

SchedulerName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:,=\[\]&*-]+$")]
"""A partition, account, QOS or node list, without characters that are special to a shell or to sbatch."""

ConstraintName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:,=\[\]&*|-]+$")]

AnyFloat = Annotated[
    float,
    BeforeValidator(reject_bool),
    PlainSerializer(
        lambda v: v if math.isfinite(v) else "NaN" if math.isnan(v) else "Infinity" if v > 0 else "-Infinity",
        return_type=float | str,
        when_used="json",
    ),
]
"""A number that may be NaN or infinite; these are strings in JSON, which cannot represent them."""


_NUMBER = re.compile(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*")


def sanitize(value: Any) -> Any:
    """Return JSON data in which NUL characters and lone surrogates, which databases reject, are replaced."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {sanitize(key): sanitize(item) for key, item in value.items()}
    return [sanitize(item) for item in value] if isinstance(value, list) else value


SanitizedText = Annotated[str, BeforeValidator(sanitize)]
"""Text of a program; characters that cannot be stored are replaced, so that a report is never rejected for them."""


def wire_time(time: datetime) -> str:
    """Return a time as RFC 3339 in UTC with milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def reject_number(value: Any) -> Any:
    """Reject numbers as times, which pydantic would take as seconds since 1970."""
    if isinstance(value, (int, float)) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise ValueError("must be a time such as 2026-01-01T12:00:00Z, not a number")
    return value


MIN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TIME = datetime(2200, 1, 1, tzinfo=UTC)


def _bounded_utc(time: datetime) -> datetime:
    # Compared before the conversion, which overflows next to the years 1 and 9999.
    if not MIN_TIME <= time <= MAX_TIME:
        raise ValueError(f"must be between {MIN_TIME.year} and {MAX_TIME.year}")
    return time.astimezone(UTC)


Timestamp = Annotated[
    AwareDatetime,
    BeforeValidator(reject_number),
    AfterValidator(_bounded_utc),
    PlainSerializer(wire_time, when_used="json"),
]
"""A time from 1970 to 2200 with a zone, as UTC; RFC 3339 with milliseconds on the wire."""


EXAMPLE_TIME, EXAMPLE_LATER = "2026-01-01T12:00:00.000Z", "2026-01-01T12:05:00.000Z"
EXAMPLE_JOB = "job_01kdvdna00az9cxjnszk8v8abh"
EXAMPLE_ATTEMPT = "0123456789abcdef"
EXAMPLE_DIGEST = "sha256:" + "0" * 64

SPEC_FORMAT = "training-spec"
"""The format, in a schema, of a mapping that is a spec. The OpenAPI document has the schema of specs in its place."""


def example(**fields: JsonValue) -> ConfigDict:
    """Return the model configuration with the values that the model's example states itself.

    The OpenAPI document completes it (`service.api.openapi`).
    """
    return ConfigDict(json_schema_extra={"example": fields})


class _Model(BaseModel):
    """A model whose JSON schema describes each field by the docstring below it.

    Pydantic's `use_attribute_docstrings` reads the source of each class when the class is made. That would take a third
    of the time in which the command line starts.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, field in cls.model_fields.items():
            text = None if field.description else _docstring(cls, name)
            for key in {name, field.alias, field.serialization_alias} & properties.keys() if text else ():
                properties[key]["description"] = text
        _name_bounds(properties)
        return schema


_BOUNDS = {"le": "maximum", "ge": "minimum", "lt": "exclusiveMaximum", "gt": "exclusiveMinimum"}
"""The names of bounds in pydantic, which it leaves in a schema where a validator precedes them, and in JSON Schema."""


def _name_bounds(schema: Any) -> None:
    """Give the bounds of numbers their names of JSON Schema, in all parts of a schema."""
    if isinstance(schema, list):
        for part in schema:
            _name_bounds(part)
    elif isinstance(schema, dict):
        if schema.get("type") in ("number", "integer"):
            for name in _BOUNDS.keys() & schema.keys():
                schema[_BOUNDS[name]] = schema.pop(name)
        for part in schema.values():
            _name_bounds(part)


def field_description(model: type[BaseModel], field: str) -> str | None:
    """Return the description of a field in the schema of its model."""
    return model.model_fields[field].description or _docstring(model, field)


def _docstring(model: type[BaseModel], field: str) -> str | None:
    """Return the docstring of a field in the class that declares it."""
    owner = next(base for base in model.__mro__ if field in inspect.get_annotations(base))
    return _field_docstrings(owner.__module__).get((owner.__qualname__, field))


@cache
def _field_docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of the fields of a module's classes, by the names of class and field."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {
        (one.name, field.target.id): inspect.cleandoc(text.value.value)
        for one in body
        if isinstance(one, ast.ClassDef)
        for field, text in pairwise(one.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


class Strict(_Model):
    """Base class of request bodies: frozen, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Document(_Model):
    """Base class of the messages between the service and its workers. It is frozen and ignores unknown fields.

    After an upgrade or a rollback the other side is of another release; see `LaunchDocument.protocol`.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class Resource(_Model):
    """Base class of responses: frozen, and an unknown field is ignored, so that an older client can read them."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)
