"""The spec of a fine-tuning job."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.db.models import DataFile
from service.openai.base_models import BaseModelEntry
from service.openai.requests import CreateJob
from service.openai.spec import FineTuneRequest, choose_hyperparameters, evaluation_interval, spec_document


def document(examples: int, *, validation: bool = True, **spec: Any) -> dict[str, Any]:
    """Return the document of a job with batches of one example."""
    file = DataFile(id="file_1", format="chat", examples=examples, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    body = CreateJob.model_validate(
        {"model": "tiny", "training_file": "file_1", "hyperparameters": {"batch_size": 1, "n_epochs": 2}}
    )
    entry = BaseModelEntry(path="/models/tiny", spec=spec)
    request = FineTuneRequest(body, entry, file, file if validation else None, seed=1, origin=None)
    return spec_document(request, choose_hyperparameters(request))


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
