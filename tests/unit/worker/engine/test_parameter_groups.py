"""Groups of parameters without weight decay, and with other learning rates."""

import pytest
from torch import nn

from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.optimization import Optimizer
from worker.core.errors import RefusedError
from worker.engine.parameter_groups import parameter_groups
from worker.tasks.gpt import Gpt


class RootNorm(nn.Module):
    """A normalization layer that is no class of torch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(nn.init.ones_(nn.Linear(1, 4).weight[:, 0].detach()))


def model():
    return nn.ModuleDict(
        {"embed": nn.Embedding(3, 4), "norm": RootNorm(), "up": nn.Linear(4, 4), "head": nn.Linear(4, 3)}
    )


def groups(module, **options):
    """Return the names of each group's parameters, with its rate and decay."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    made = parameter_groups(Optimizer(lr=0.1, weight_decay=0.5, **options), module)
    return [([names[id(p)] for p in group["params"]], group["lr"], group["weight_decay"]) for group in made]


def test_all_parameters_are_one_group_by_default():
    names = ["embed.weight", "norm.weight", "up.weight", "up.bias", "head.weight", "head.bias"]
    assert groups(model()) == [(names, 0.1, 0.5)]


@pytest.mark.parametrize(
    ("kinds", "exempt"),
    [
        (["norms"], ["norm.weight"]),
        (["biases"], ["up.bias", "head.bias"]),
        (["embeddings"], ["embed.weight"]),
        (["norms", "biases"], ["norm.weight", "up.bias", "head.bias"]),
    ],
)
def test_kinds_have_no_decay(kinds, exempt):
    names = {decay: names for names, _, decay in groups(model(), no_decay=kinds)}
    assert names[0.0] == exempt
    assert not set(names[0.5]) & set(exempt)


def test_a_tied_head_is_an_embedding():
    module = Gpt(GptModel(layers=1, width=16, heads=2, context=8, tied=True))
    (free,) = (names for names, _, decay in groups(module, no_decay=["embeddings"]) if decay == 0.0)
    assert free == ["embedding.weight", "positions.weight"]


def test_first_matching_pattern_scales_the_rate():
    made = groups(model(), lr_scale={"head.*": 10, "*.bias": 2})
    assert [(names, pytest.approx(rate)) for names, rate, _ in made] == [
        (["embed.weight", "norm.weight", "up.weight"], 0.1),
        (["up.bias"], 0.2),
        (["head.weight", "head.bias"], 1.0),
    ]


def test_frozen_parameters_are_in_no_group():
    module = model()
    module["up"].requires_grad_(False)
    assert all("up.weight" not in names for names, _, _ in groups(module, no_decay=["biases"]))


def test_pattern_without_a_trained_parameter_is_refused():
    module = model()
    module["up"].requires_grad_(False)
    with pytest.raises(RefusedError, match=r"optimizer\.lr_scale: `up\.\*` matches no trained parameter") as refused:
        groups(module, lr_scale={"up.*": 2})
    assert "The closest: " in refused.value.hint
