"""The spec of a fine-tuning job."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.core.errors import InvalidRequestError
from service.db.models import DataFile
from service.plugins.openai.base_models import BaseModelEntry, ModelLimits
from service.plugins.openai.requests import CreateJob
from service.plugins.openai.spec import (
    FineTuneRequest,
    choose_batch_size,
    choose_epochs,
    choose_hyperparameters,
    entry_problems,
    evaluation_interval,
    spec_document,
)


def document(examples: int, *, validation: bool = True, **spec: Any) -> dict[str, Any]:
    """Return the document of a job with batches of one example."""
    request = request_of(examples, BaseModelEntry(path="/models/tiny", spec=spec), validation=validation)
    return spec_document(request, choose_hyperparameters(request))


def request_of(examples: int, entry: BaseModelEntry, *, validation: bool = False) -> FineTuneRequest:
    """Return a request for two epochs with batches of one example."""
    file = DataFile(id="file_1", format="chat", examples=examples, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    body = CreateJob.model_validate(
        {"model": "tiny", "training_file": "file_1", "hyperparameters": {"batch_size": 1, "n_epochs": 2}}
    )
    return FineTuneRequest(body, entry, file, file if validation else None, seed=1, origin=None)


@pytest.mark.parametrize(
    ("requested", "saves", "interval"),
    [(1, 5, 1), (2, 9, 3), (25, 100, 25), (26, 104, 26), (26, 105, 21), (25, 101, 101), (1000, 10, 10), (3, 1, 1)],
)
def test_evaluations_divide_the_steps_between_checkpoints(requested: int, saves: int, interval: int) -> None:
    assert evaluation_interval(requested, saves) == interval
    assert saves % interval == 0


@pytest.mark.parametrize("examples", [1, 9, 10, 101, 1000, 999_983])
def test_evaluation_falls_on_the_end_of_each_epoch(examples: int) -> None:
    made = document(examples)
    assert made["checkpoint"]["every_steps"] == examples
    assert examples % made["evaluation"]["every_steps"] == 0


def test_intervals_of_the_administrator_are_aligned_too() -> None:
    made = document(100, evaluation={"every_steps": 30, "limit": 8}, checkpoint={"every_steps": 50})
    assert made["evaluation"] == {"every_steps": 25, "limit": 8}
    assert document(100, evaluation={"every_steps": None})["evaluation"]["every_steps"] == 100
    assert document(100, checkpoint={"every_steps": None})["evaluation"]["every_steps"] == 25


@pytest.mark.parametrize("value", ["x", 0, True, [1]])
def test_values_that_are_no_interval_are_left_to_the_check_of_the_spec(value: Any) -> None:
    assert document(10, evaluation={"every_steps": value})["evaluation"]["every_steps"] == value


def test_job_without_validation_file_evaluates_nothing() -> None:
    assert "evaluation" not in document(10, validation=False)


@pytest.mark.parametrize(("given", "used"), [(4, 1), (1, 1), ("auto", "auto")])
def test_micro_size_of_the_model_is_at_most_the_batch(given: Any, used: Any) -> None:
    assert document(10, batch={"micro_size": given})["batch"] == {"size": 1, "micro_size": used}


@pytest.mark.parametrize(
    ("limits", "param", "message"),
    [
        ({"examples": 10}, "training_file", "the file has 40 examples; model tiny takes at most 10"),
        ({"epochs": 1}, "hyperparameters.n_epochs", "the job has 2 epochs; model tiny takes at most 1"),
        (
            {"examples_times_epochs": 50},
            "hyperparameters.n_epochs",
            "2 epochs of 40 examples are 80 examples; model tiny takes at most 50",
        ),
    ],
)
def test_limit_of_the_model_is_stated_with_what_exceeds_it(limits: dict[str, int], param: str, message: str) -> None:
    request = request_of(40, BaseModelEntry(path="/models/tiny", limits=ModelLimits(**limits)))
    with pytest.raises(InvalidRequestError) as caught:
        choose_hyperparameters(request)
    assert (caught.value.param, caught.value.message, caught.value.code) == (param, message, "limit_exceeded")


def test_problem_of_an_entry_is_known_without_a_request() -> None:
    assert entry_problems(BaseModelEntry(path="/models/tiny", spec={"gpus": 8, "strategy": "fsdp"})) == []
    (problem,) = entry_problems(BaseModelEntry(path="/models/tiny", spec={"gpus": "many"}))
    assert problem.param == "gpus"


@pytest.mark.parametrize(
    ("examples", "epochs"),
    [(1, 25), (4, 25), (10, 10), (33, 4), (34, 3), (1000, 3), (8333, 3), (8334, 2), (12_501, 1), (10**6, 1)],
)
def test_automatic_epochs_depend_on_the_number_of_examples(examples: int, epochs: int) -> None:
    assert choose_epochs("auto", examples) == choose_epochs(None, examples) == epochs
    assert choose_epochs(7, examples) == 7


@pytest.mark.parametrize(
    ("examples", "gpus", "size"),
    [(1, 1, 1), (100, 4, 4), (1000, 1, 2), (50_000, 8, 100), (10**6, 8, 256), (10, 512, 512)],
)
def test_automatic_batch_size_is_a_share_of_the_examples(examples: int, gpus: int, size: int) -> None:
    assert choose_batch_size("auto", examples, gpus) == size
    assert choose_batch_size(3, examples, gpus) == 3
