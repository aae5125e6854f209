"""The LoRA fields of a spec."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.training_spec import parse_spec


@pytest.mark.parametrize(("targets", "param"), [("q_proj", "lora.targets"), ([1], "lora.targets.0")])
def test_targets_are_a_list_or_auto(targets, param):
    with pytest.raises(SpecError) as caught:
        parse_spec({"task": "regression", "steps": 1, "lora_rank": 1, "lora": {"targets": targets}})
    assert caught.value.problems[0].param == param


def test_lora_and_trainable_patterns_are_exclusive():
    with pytest.raises(SpecError, match="trainable: cannot be combined with `lora_rank`"):
        parse_spec(
            {
                "task": "regression",
                "steps": 1,
                "model": {"source": "builtin", "name": "mlp"},
                "data": {"source": "builtin", "name": "parity"},
                "lora_rank": 1,
                "trainable": ["*"],
            }
        )
