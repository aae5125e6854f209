"""The average of the weights is that of torch, and lends itself to the model without a trace."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainyard.contract.spec.optimization import Ema
from worker.engine.callbacks.base import StepResult
from worker.engine.callbacks.weight_average import WeightAverage


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def after_step(step):
    return StepResult(step, examples=1, tokens=None, loss=None, losses={}, measured={}, grad_norm=None, marks=None)


def train(module, steps, *, each_step):
    """Change the weights at random, and call `each_step` after each change."""
    generator = torch.Generator().manual_seed(5)
    for step in range(1, steps + 1):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += torch.randn(parameter.shape, generator=generator)
        each_step(step)


def copies(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("every", [1, 3])
def test_average_equals_that_of_torch(every):
    module = network()
    average = WeightAverage(Ema(decay=0.75, every=every), module)
    theirs = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.75))

    def each_step(step):
        average.on_step_end(after_step(step))
        if step % every == 0:
            theirs.update_parameters(module)

    train(module, 10, each_step=each_step)
    with average.applied():
        assert equal(copies(module), copies(theirs.module))


def test_weights_are_the_same_after_the_loan():
    module = network()
    average = WeightAverage(Ema(decay=0.9), module)
    train(module, 3, each_step=lambda step: average.on_step_end(after_step(step)))
    before = copies(module)
    for _ in range(2):
        with average.applied():
            lent = copies(module)
            assert not equal(lent, before)
        assert equal(copies(module), before)
    with pytest.raises(ZeroDivisionError), average.applied():
        _ = 1 / 0
    assert equal(copies(module), before)


def test_model_has_its_own_weights_before_the_first_update():
    module = network()
    average = WeightAverage(Ema(every=4), module)
    train(module, 3, each_step=lambda step: average.on_step_end(after_step(step)))
    before = copies(module)
    with average.applied():
        assert equal(copies(module), before)


def test_frozen_parameters_have_no_average():
    module = network()
    module[0].requires_grad_(False)
    average = WeightAverage(Ema(), module)
    assert list(average.state()) == ["1.weight", "1.bias", "2.weight", "2.bias"]


def test_restored_average_continues():
    module = network()
    whole, first = (WeightAverage(Ema(decay=0.5), module) for _ in range(2))
    parts = [first]

    def each_step(step):
        whole.on_step_end(after_step(step))
        parts[-1].on_step_end(after_step(step))
        if step == 4:
            saved = {name: tensor.clone() for name, tensor in first.state().items()}
            parts.append(WeightAverage(Ema(decay=0.5), module))
            parts[-1].restore(saved, first.updates())

    train(module, 8, each_step=each_step)
    assert equal(parts[-1].state().values(), whole.state().values())
    assert (int(parts[-1].updates()), int(whole.updates())) == (8, 8)
