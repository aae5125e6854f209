"""Messages of validation errors."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from trainyard.contract import validation_messages
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec


def message_for(kind: Any, value: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    return validation_messages.describe_error(caught.value.errors()[0])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (
            Annotated[str, Field(pattern=validation_messages.RANK_PATTERN)],
            "abc",
            "must be a rank, such as 0, or `launch`",
        ),
        (
            Annotated[str, Field(pattern=validation_messages.DIGEST_PATTERN)],
            "md5:1",
            "must be `sha256:` and 64 hexadecimal digits",
        ),
        (
            Annotated[str, Field(pattern=r"^[a-z0-9_.-]{1,4}$")],
            "aB",
            "contains a character that is not allowed: `B`; allowed are a-z 0-9 _ . -",
        ),
        (Annotated[str, Field(pattern=r"^[a-z]{1,4}$")], "abcde", "must have 1 to 4 characters, not 5"),
        (Annotated[str, Field(pattern=r"^[a-z]+$")], "", "must not be empty"),
        (Annotated[str, Field(pattern=r"^[^\n]+$")], "a\n", "contains a character that is not allowed: U+000A"),
        (Annotated[str, Field(pattern=r"^a|b$")], "c", "contains a character that is not allowed"),
        (Annotated[int, Field(le=200)], 201, "must be less than or equal to 200"),
        (int, "x", "must be a whole number"),
        (str, 1, "must be a string; write it in quotes"),
        (Literal["asc", "desc"], "up", "must be 'asc' or 'desc'"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "must have at most 1 item, not 2"),
        (list[int], 1, 'must be a list, such as `["a", "b"]`'),
        (dict[str, int], 1, "must be a mapping of fields"),
    ],
)
def test_message_describes_a_valid_value(kind: Any, value: Any, expected: str) -> None:
    assert message_for(kind, value).startswith(expected)


def spec_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the path of each field of the spec and of its sections."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        yield path
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from spec_fields(kind, f"{path}.")


@pytest.mark.parametrize("value", [["x", {}], {"zz": {"y": 1}}, "?", -1, True, 1.5], ids=repr)
def test_no_problem_of_a_spec_names_a_type_of_the_library(value: Any) -> None:
    problems: list[Problem] = []
    for path in spec_fields(TrainingSpec):
        try:
            parse_spec(fill_template("mlp_parity", {path: value}))
        except SpecError as error:
            problems += error.problems
    assert problems
    named = [problem for problem in problems if re.search(r"constrained|function-|literal\[", problem.param or "")]
    assert named == []


def test_every_pattern_is_anchored() -> None:
    for pattern in validation_messages.PATTERN_MESSAGES:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        re.compile(pattern)
