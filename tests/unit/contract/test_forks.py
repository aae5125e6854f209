from typing import Any

import pytest

from trainyard.contract.spec.forks import (
    adjusted_differences,
    fixed_differences,
    incompatible_fields,
    layout_differences,
    parse_origin,
)
from trainyard.contract.spec.training_spec import TrainingSpec

ID = "job_" + "0" * 26
PLAIN: dict[str, Any] = {
    "task": "causal_lm",
    "model": {"source": "hf", "path": "/m"},
    "data": {"source": "jsonl", "path": "/d"},
    "steps": 10,
}


def spec(**changes: Any) -> TrainingSpec:
    return TrainingSpec.model_validate({**PLAIN, **changes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [(ID, (ID, None)), (f"{ID}:0", (ID, 0)), (f"{ID}:12", (ID, 12)), (f"{ID}:-1", None), (f"{ID}/x", None), ("", None)],
)
def test_parse_origin(text: str, expected: object) -> None:
    assert parse_origin(text) == expected


def test_another_model_folder_is_checked_by_the_worker() -> None:
    other = spec(model={"source": "hf", "path": "/other"})
    assert incompatible_fields(spec(), other) == []
    assert fixed_differences(spec(), other) == ["model.path"]


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        ({"lora_rank": 4}, ["lora_rank"]),
        ({"trainable": ["x*"]}, ["trainable"]),
        ({"model": {"source": "builtin", "name": "gpt", "layers": 2}}, 9),
    ],
)
def test_incompatible_fields_are_listed(changes: dict[str, Any], params: list[str] | int) -> None:
    expected = [problem.param for problem in incompatible_fields(spec(), spec(**changes))]
    assert expected == params if isinstance(params, list) else "model.source" in expected


def test_terms_of_the_loss_are_adjustable() -> None:
    other = spec(loss={"z_loss": 1e-4})
    assert (fixed_differences(spec(), other), adjusted_differences(spec(), other)) == ([], ["loss"])


def test_evaluation_data_keeps_the_trajectory() -> None:
    other = spec(data={"source": "jsonl", "path": "/d", "eval_sets": {"books": "/b"}})
    assert fixed_differences(spec(), other) + adjusted_differences(spec(), other) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"source": "jsonl", "path": "/e"}, ["data.path"]),
        ({"source": "jsonl", "path": "/d", "packing": False, "max_length": 64}, ["data.max_length", "data.packing"]),
        ({"source": "builtin", "name": "stdlib"}, ["data.source"]),
    ],
)
def test_differing_fields_of_the_data_are_named(data: dict[str, Any], expected: list[str]) -> None:
    assert fixed_differences(spec(), spec(data=data)) == expected


def test_layout_and_health_fields_keep_the_trajectory() -> None:
    other = spec(
        gpus=4, strategy="fsdp", name="x", log={"every_steps": 1}, checkpoint={"keep_last": 1}, metadata={"a": "b"}
    )
    assert fixed_differences(spec(), other) + adjusted_differences(spec(), other) == []
    assert layout_differences(spec(), other) == ["gpus", "strategy"]
