"""Mistakes of the administrator are told apart from those of a request."""

import json
import shutil

import pytest
import structlog

from tests.support.openai_requests import PREFIX, create, try_create, upload
from tests.support.seeds import write_models_file
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def refused(world: World, **body: object) -> dict[str, str]:
    """Return the error about the configuration of the model, which is also logged."""
    with structlog.testing.capture_logs() as logged:
        answer = try_create(world, **body)
    error: dict[str, str] = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (503, "model_configuration", "model"), answer.text
    assert answer.headers["x-should-retry"] == "false", "the client would repeat the request"
    assert "model tiny is configured wrongly in models.yaml of this service; tell an administrator" in error["message"]
    (entry,) = [one for one in logged if one["event"] == "model cannot be used"]
    assert (entry["log_level"], entry["model"]) == ("error", "tiny")
    assert entry["reason"] in error["message"]
    return error


@pytest.mark.parametrize(
    ("spec", "field"),
    [({"gpus": "two"}, "gpus"), ({"colour": "blue"}, "colour"), ({"optimizer": {"name": "x"}}, "optimizer.name")],
)
def test_invalid_field_of_the_model_s_spec_is_the_administrator_s(world: World, spec: dict, field: str) -> None:
    write_models_file(world, **spec)
    assert field in refused(world)["message"]


def test_invalid_value_of_the_request_is_the_user_s(world: World) -> None:
    write_models_file(world, gpus=4)
    answer = try_create(world, hyperparameters={"batch_size": 3})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "hyperparameters.batch_size")


def test_missing_folder_and_template_are_refused_at_creation(world: World) -> None:
    folder = write_models_file(world)
    text = b'{"prompt": "a", "completion": "b"}\n'
    answer = world.client.post(f"{PREFIX}/files", files={"file": ("a.jsonl", text)}, data={"purpose": "fine-tune"})
    plain = answer.json()["id"]
    (folder / "tokenizer_config.json").write_text("{}")
    assert "has no chat template, which conversations need" in refused(world)["message"]
    mixed = try_create(world, training_file=upload(world), validation_file=plain).json()["error"]
    expected = "has the format `completion`, and `training_file` the format `chat`"
    assert (mixed["param"], expected in mixed["message"]) == ("validation_file", True)
    assert create(world, training_file=plain)["status"] == "validating_files"
    shutil.rmtree(folder)
    assert f"{folder} does not exist" in refused(world)["message"]
    assert world.client.get(f"{PREFIX}/models").status_code == 200


def test_folder_outside_of_the_allowed_roots_is_the_administrator_s(world: World) -> None:
    (world.settings.state / "models.yaml").write_text(json.dumps({"models": {"tiny": {"path": "/etc"}}}))
    assert "model.path: is outside the folders" in refused(world)["message"]


def test_invalid_file_is_reported_by_every_route_that_reads_it(world: World) -> None:
    write_models_file(world)
    (world.settings.state / "models.yaml").write_text("models: {tiny: {path: /a, colour: blue}}")
    for answer in (world.client.get(f"{PREFIX}/models"), try_create(world)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "models_file")
        assert "models.tiny.colour" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
