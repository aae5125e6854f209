"""What is refused of a request, and with which words."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.plugins.openai.requests import CreateJob
from trainyard.contract.validation_messages import describe_error


def message(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        CreateJob(model="tiny", training_file="file_1", **fields)
    (error,) = caught.value.errors()
    return describe_error(error)


@pytest.mark.parametrize("value", [0, 1001, -1, 1.5, True, "many", [], int])
def test_epochs_outside_of_the_range_are_refused_with_the_range(value: Any) -> None:
    expected = "must be a whole number from 1 to 1000, or 'auto'"
    assert message(hyperparameters={"n_epochs": value}) == expected


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("batch_size", 0, "must be a whole number from 1 to 65536, or 'auto'"),
        ("learning_rate_multiplier", -1, "must be a number greater than 0, or 'auto'"),
        ("learning_rate_multiplier", float("inf"), "must be a number greater than 0, or 'auto'"),
    ],
)
def test_hyperparameter_is_refused_with_all_that_it_can_be(field: str, value: Any, expected: str) -> None:
    assert message(hyperparameters={field: value}) == expected


def test_hyperparameters_may_be_numbers_auto_or_absent() -> None:
    for value in (1, "auto", None):
        body = CreateJob.model_validate(
            {"model": "tiny", "training_file": "file_1", "hyperparameters": {"n_epochs": value, "batch_size": value}}
        )
        assert body.hyperparameters is not None
        assert body.hyperparameters.n_epochs == value


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        ("my model", "contains ' ';"),
        ("a/b", "contains '/';"),
        ("müde", "contains '\\xfc';"),
        (".x", "starts with '.';"),
    ],
)
def test_suffix_is_refused_with_its_character_and_those_that_are_allowed(suffix: str, start: str) -> None:
    error = message(suffix=suffix)
    assert error.startswith(start)
    assert "letters and digits of ASCII, `.`, `_` and `-`" in error
