"""Where the average over the ranks, of a loss multiplied by their number, is the exact sum."""

import pytest
import torch
from torch import nn

from trainyard.contract.spec.templates import load_template
from trainyard.contract.spec.training_spec import parse_spec
from worker.engine.strategies.ddp import can_average


def spec(**changes):
    return parse_spec({**load_template("mlp_parity").spec, **changes})


@pytest.mark.parametrize(("world", "exact"), [(1, True), (2, True), (3, False), (6, False), (8, True), (4096, True)])
def test_powers_of_two_divide_exactly(world, exact):
    assert can_average(spec(), nn.Linear(2, 2), world) is exact


def test_the_larger_loss_would_overflow_in_fp16():
    assert not can_average(spec(precision="fp16"), nn.Linear(2, 2), 2)
    assert can_average(spec(precision="bf16"), nn.Linear(2, 2), 2)


def test_gradients_in_bf16_are_summed_in_fp32():
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    assert not can_average(spec(precision="bf16"), model, 2)
    assert can_average(spec(precision="bf16"), nn.Sequential(model.requires_grad_(False), nn.Linear(2, 2)), 2)
