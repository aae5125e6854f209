"""Specs as YAML for editing."""

import pytest

from service.web.pages.spec_text import brief_spec, spec_yaml
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


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_brief_spec_has_no_defaults_of_the_optimizer(name: str) -> None:
    spec = parse_spec(
        {"task": "custom", "target": "a:b", "code": "sha256:" + "0" * 64, "steps": 1, "optimizer": {"name": name}}
    )
    assert brief_spec(dump_spec(spec))["optimizer"] == {"name": name}
