"""Partial fine-tuning: the trained parameters, and the content of checkpoints."""

import pytest
from torch import nn

from trainyard.contract.spec.decoders import GptModel
from worker.core.errors import RefusedError
from worker.engine.state import trained_state
from worker.engine.trainable import freeze_except, frozen_names
from worker.tasks.gpt import Gpt


def gpt():
    return Gpt(GptModel(layers=2, width=16, heads=2, context=8))


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.middle = nn.Linear(2, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", self.middle.bias.detach().clone())


class TestPatterns:
    def test_patterns_select_parameters_by_name(self):
        model = gpt()
        freeze_except(model, ("blocks.1.*.bias", "norm.*"))
        assert {"norm.weight", "norm.bias", "blocks.1.attention.out.bias"} <= trained(model)
        assert not any(
            name.startswith("blocks.0") or name == "blocks.1.attention.qkv.weight" for name in trained(model)
        )

    def test_tied_weight_matches_any_of_its_names(self):
        model = Tied()
        freeze_except(model, ("head.*",))
        assert trained(model) == {"embedding.weight"}

    def test_unmatched_pattern_error_suggests_close_names(self):
        with pytest.raises(RefusedError, match=r"trainable: `blocks.7.attention.qkv.weight` matches no") as caught:
            freeze_except(gpt(), ("norm.*", "blocks.7.attention.qkv.weight"))
        assert "blocks.1.attention.qkv.weight" in caught.value.hint


class TestCheckpointContent:
    def test_checkpoint_has_buffers_and_no_frozen_parameters(self):
        model = Tied()
        freeze_except(model, ("middle.*",))
        assert frozen_names(model) == {"embedding.weight", "head.weight"}
        assert set(trained_state(model)) == {"middle.weight", "middle.bias", "seen"}
        assert set(trained_state(model, whole=True)) == {"middle.weight", "middle.bias", "seen"}

    def test_checkpoint_is_complete_if_all_parameters_are_trained(self):
        assert set(trained_state(Tied())) == set(Tied().state_dict())
