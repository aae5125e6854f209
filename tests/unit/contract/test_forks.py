from typing import Any

import pytest

from trainyard.contract.spec.forks import incompatible_fields, parse_origin, trajectory_differences
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
    ("text", "found"),
    [(ID, (ID, None)), (f"{ID}:0", (ID, 0)), (f"{ID}:12", (ID, 12)), (f"{ID}:-1", None), (f"{ID}/x", None), ("", None)],
)
def test_parse_origin(text: str, found: object) -> None:
    assert parse_origin(text) == found


def test_another_folder_of_the_model_is_for_the_worker_to_judge() -> None:
    other = spec(model={"source": "hf", "path": "/other"})
    assert incompatible_fields(spec(), other) == []
    assert trajectory_differences(spec(), other) == ["model"]


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        ({"lora_rank": 4}, ["lora_rank"]),
        ({"trainable": ["x*"]}, ["trainable"]),
        ({"model": {"source": "builtin", "name": "gpt", "layers": 2}}, 9),
    ],
)
def test_other_parameters_do_not_fit(changes: dict[str, Any], params: list[str] | int) -> None:
    found = [problem.param for problem in incompatible_fields(spec(), spec(**changes))]
    assert found == params if isinstance(params, list) else "model.source" in found


def test_how_it_is_laid_out_and_watched_changes_no_update() -> None:
    other = spec(
        gpus=4, strategy="fsdp", name="x", log={"every_steps": 1}, checkpoint={"keep_last": 1}, metadata={"a": "b"}
    )
    assert trajectory_differences(spec(), other) == []
