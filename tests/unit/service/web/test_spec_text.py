"""Specs as YAML for editing."""

from typing import Any

import pytest

from service.web.pages.spec_text import brief_spec, longer, set_field, spec_yaml
from trainyard.contract.spec.templates import load_template, template_names
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.spec.yaml_loader import load_yaml


@pytest.mark.parametrize("name", template_names())
def test_brief_spec_is_the_same_spec(name: str) -> None:
    spec = parse_spec(load_template(name).spec)
    brief = load_yaml(spec_yaml(brief_spec(dump_spec(spec))))
    assert parse_spec(brief) == spec
    assert len(brief) < len(dump_spec(spec)) / 2


def test_invalid_spec_is_returned_unchanged() -> None:
    assert brief_spec({"task": "gone"}) == {"task": "gone"}


def test_spec_text_is_the_same_spec() -> None:
    spec = {"gpus": 2, "strategy": "fsdp", "precision": "bf16", "lora_rank": 8}
    assert load_yaml(spec_yaml(spec)) == spec


def test_variables_are_in_quotes() -> None:
    spec = {"task": "script", "environment": {"variables": {"WIDTH": "1e3", "NAME": "a 'b'"}, "venv": "/v"}}
    text = spec_yaml(spec)
    assert load_yaml(text) == spec
    assert 'WIDTH: "1e3"' in text
    assert load_yaml(text.replace("1e3", "1000"))["environment"]["variables"]["WIDTH"] == "1000"


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_brief_spec_has_no_defaults_of_the_optimizer(name: str) -> None:
    spec = parse_spec(
        {"task": "custom", "target": "a:b", "code": "sha256:" + "0" * 64, "steps": 1, "optimizer": {"name": name}}
    )
    assert brief_spec(dump_spec(spec))["optimizer"] == {"name": name}


def test_fields_are_set_by_their_paths() -> None:
    document: dict[str, Any] = {"steps": 4, "optimizer": {"name": "sgd"}}
    set_field(document, "optimizer.lr", "0.5")
    set_field(document, "batch.size", "8")
    set_field(document, "name", '"a, b"')
    set_field(document, "steps.x", "1")
    set_field(document, "seed", "[")
    assert document == {
        "steps": 4,
        "optimizer": {"name": "sgd", "lr": 0.5},
        "batch": {"size": 8},
        "name": "a, b",
    }


def test_a_longer_run_has_twice_the_steps_or_epochs() -> None:
    assert [longer(document) for document in ({"steps": 4}, {"epochs": 1.5}, {"steps": "x"})] == [
        "steps",
        "epochs",
        None,
    ]
    document = {"epochs": 1.5}
    longer(document)
    assert document == {"epochs": 3.0}
