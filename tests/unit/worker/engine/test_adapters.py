"""The layers that get adapters, and their names for peft."""

import pytest
from torch import nn

from trainyard.contract.spec.decoders import GptModel
from worker.core.errors import RefusedError
from worker.engine.adapters import _check_rank, adapter_targets, shortest_target_names
from worker.tasks.gpt import Gpt
from worker.tasks.image_classification import Convnet
from worker.tasks.regression import mlp


def gpt(*, tied=True):
    return Gpt(GptModel(layers=2, width=16, heads=2, context=8, vocab=257, tied=tied))


def last_parts(result):
    return [name.rpartition(".")[2] for name in result]


class TestAuto:
    def test_auto_targets_all_linear_layers_of_a_transformer(self):
        assert last_parts(adapter_targets(gpt(), "auto")) == ["qkv", "out", "0", "2"] * 2

    def test_auto_excludes_the_head(self):
        assert "head" not in adapter_targets(gpt(tied=False), "auto")

    def test_auto_excludes_the_last_layer_of_a_plain_network(self):
        assert adapter_targets(mlp((2, 2, 2, 3), "tanh"), "auto") == ["0", "2"]

    def test_auto_targets_the_convolutions_of_a_convnet(self):
        assert adapter_targets(Convnet(4, 10, 0.0), "auto") == ["features.0", "features.2", "features.5"]

    def test_auto_excludes_layers_with_tied_weights(self):
        model = mlp((4, 4, 4, 4, 2), "tanh")
        model[2].weight = model[0].weight
        assert adapter_targets(model, "auto") == ["4"]


class TestNamedTargets:
    @pytest.mark.parametrize("target", ["qkv", "*.qkv", "blocks.*.attention.qkv", "qk?"])
    def test_target_is_a_name_suffix_or_pattern(self, target):
        assert adapter_targets(gpt(), (target,)) == ["blocks.0.attention.qkv", "blocks.1.attention.qkv"]

    def test_full_name_matches_one_layer(self):
        assert adapter_targets(gpt(), ("blocks.1.attention.out",)) == ["blocks.1.attention.out"]

    @pytest.mark.parametrize("target", ["q_proj", "norm", "embedding"])
    def test_unmatched_target_error_lists_the_layers(self, target):
        with pytest.raises(RefusedError, match=f"lora.targets: `{target}` matches no layer") as caught:
            adapter_targets(gpt(), ("qkv", target))
        assert all(name in caught.value.hint for name in ("qkv", "out", "0", "2"))

    def test_tied_weight_is_rejected(self):
        model = mlp((4, 4, 4, 2), "tanh")
        model[2].weight = model[0].weight
        with pytest.raises(RefusedError, match="`0` shares its weight"):
            adapter_targets(model, ("0",))


class TestAdapterRank:
    def test_rank_may_equal_the_smallest_dimension(self):
        _check_rank(mlp((2, 8, 5, 3), "tanh"), ["0", "2"], 2)

    def test_larger_rank_is_rejected_with_the_layer_name(self):
        with pytest.raises(RefusedError, match=r"lora_rank is 3, larger than the smallest side of its target `0`, 2"):
            _check_rank(mlp((2, 8, 5, 3), "tanh"), ["0", "2"], 3)

    def test_convolution_dimension_includes_the_kernel(self):
        _check_rank(Convnet(4, 10, 0.0), ["features.0"], 4)
        with pytest.raises(RefusedError, match=r"`features.0`, 4"):
            _check_rank(Convnet(4, 10, 0.0), ["features.0"], 5)


class TestShortestTargetNames:
    def peft_matches(self, reported, modules):
        from re import fullmatch

        if isinstance(reported, str):
            return {m for m in modules if fullmatch(reported, m)}
        return {m for m in modules if any(m == n or m.endswith(f".{n}") for n in reported)}

    @pytest.mark.parametrize(
        ("targets", "expected"),
        [
            (["blocks.0.attention.qkv", "blocks.1.attention.qkv"], ["qkv"]),
            (["blocks.1.attention.qkv"], ["blocks.1.attention.qkv"]),
        ],
    )
    def test_names_are_as_short_as_possible(self, targets, expected):
        modules = [name for name, _ in gpt().named_modules()]
        reported = shortest_target_names(targets, modules)
        assert reported == expected
        assert self.peft_matches(reported, modules) == set(targets)

    def test_ambiguous_names_become_a_pattern(self):
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ModuleDict({"a": nn.Linear(2, 2)})})
        modules = [name for name, _ in model.named_modules()]
        assert self.peft_matches(shortest_target_names(["a"], modules), modules) == {"a"}
