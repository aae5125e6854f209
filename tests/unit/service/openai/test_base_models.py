"""The administrator's file of base models."""

import os
from pathlib import Path

import pytest

from service.core.errors import InvalidRequestError, UnavailableError
from service.openai.base_models import BaseModels


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
    with pytest.raises(UnavailableError, match=r"models\.yaml, is invalid") as caught:
        models(tmp_path / "models.yaml", text).all()
    assert reason in caught.value.message
