"""The administrator's file of base models."""

import os
from pathlib import Path

import pytest
import structlog

from service.core.errors import InvalidRequestError
from service.plugins.openai.base_models import BaseModels
from service.plugins.openai.errors import ModelConfigurationError


def models(path: Path, text: str) -> BaseModels:
    path.write_text(text)
    return BaseModels(path)


def test_missing_file_has_no_models(tmp_path: Path) -> None:
    empty = BaseModels(tmp_path / "models.yaml")
    assert empty.all() == {}
    with pytest.raises(InvalidRequestError, match="an administrator adds them") as caught:
        empty.get("gpt")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    base = models(path, "models: {one: {path: /m/one}}")
    assert base.get("one").spec == {"lora_rank": 16}
    path.write_text("models: {two: {path: /m/two, spec: {gpus: 2}}}")
    os.utime(path, (1, 1))
    assert list(base.all()) == ["two"]


def test_learning_rate_depends_on_adapters_and_method(tmp_path: Path) -> None:
    base = models(
        tmp_path / "models.yaml", "models: {a: {path: /a}, f: {path: /f, spec: {}}, o: {path: /o, learning_rate: 1}}"
    )
    rates = {name: base.get(name).base_learning_rate(preference=False) for name in base.all()}
    assert rates == {"a": 2e-4, "f": 1e-5, "o": 1.0}
    assert base.get("a").base_learning_rate(preference=True) == pytest.approx(2e-5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("models: {a: {}}", "models.a.path"),
        ("models: {'a:b': {path: /a}}", "models"),
        ("models: {a: {path: /a, colour: blue}}", "colour"),
        ("- a", ""),
        ("models: [", "not valid YAML"),
    ],
)
def test_invalid_file_is_reported_by_its_field(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ModelConfigurationError, match=r"models\.yaml, is invalid; tell an administrator") as caught:
        models(tmp_path / "models.yaml", text).all()
    assert (reason in caught.value.message, caught.value.code) == (True, "models_file")


@pytest.mark.parametrize(
    "field",
    [
        "epochs",
        "steps",
        "seed",
        "name",
        "task",
        "optimizer.lr",
        "batch.size",
        "preference.beta",
        "data.packing",
        "data.id",
    ],
)
def test_field_that_requests_determine_is_refused_with_model_and_field(tmp_path: Path, field: str) -> None:
    section, _, name = field.rpartition(".")
    spec = f"{section}: {{{name}: 1}}" if section else f"{name}: 1"
    with pytest.raises(ModelConfigurationError) as caught:
        models(tmp_path / "models.yaml", f"models: {{tiny: {{path: /a, spec: {{gpus: 1, {spec}}}}}}}").all()
    for part in ("models.yaml", "models.tiny.spec", f"has `{field}`, which each request determines; remove it"):
        assert part in caught.value.message


def test_other_fields_of_the_same_sections_are_accepted(tmp_path: Path) -> None:
    spec = (
        "optimizer: {name: adamw}, batch: {micro_size: 2}, data: {max_length: 64}, preference: {label_smoothing: 0.1}"
    )
    loaded = models(tmp_path / "models.yaml", f"models: {{tiny: {{path: /a, spec: {{{spec}}}}}}}")
    assert loaded.get("tiny").spec["batch"] == {"micro_size": 2}


def test_reason_is_logged_once_for_each_version_of_the_file(tmp_path: Path) -> None:
    base = models(tmp_path / "models.yaml", "models: {a: {path: /a, colour: blue}}")
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            with pytest.raises(ModelConfigurationError):
                base.all()
        assert [(entry["log_level"], "colour" in entry["reason"]) for entry in logged] == [("error", True)]
        models(tmp_path / "models.yaml", "models: {a: {path: /a, size: large}}")
        with pytest.raises(ModelConfigurationError, match="size"):
            base.all()
    assert len(logged) == 2
    models(tmp_path / "models.yaml", "models: {a: {path: /a}}")
    assert list(base.all()) == ["a"]
