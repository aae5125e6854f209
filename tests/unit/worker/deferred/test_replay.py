"""Recorded operations are computed with one tensor in memory at a time, as far as their order allows it."""

import pytest
import torch
from torch import nn

from tests.support.host_memory import LiveTensorBytes
from worker.deferred.recorder import record
from worker.deferred.replay import replay

WIDTH, LAYERS = 64, 6
WEIGHT = 4 * WIDTH * WIDTH


class Layers(nn.Module):
    """Layers that are initialised twice, the second time after all of them exist."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        for layer in self.layers:
            nn.init.normal_(layer.weight)


class Rescaled(Layers):
    def __init__(self):
        super().__init__()
        for number, layer in enumerate(self.layers, start=1):
            layer.weight.data.div_(number**0.5)


class Copied(Layers):
    def __init__(self):
        super().__init__()
        self.layers[-1].weight.data.copy_(self.layers[0].weight.data)


def computed(build):
    """Return the values of a recorded model by name, and the peak of the tensors in memory."""
    torch.manual_seed(1)
    module, recording = record(build)
    values = {}

    def store(name):
        return lambda whole: values.update({name: whole.tolist()})

    targets = {recording.describe(parameter): [store(name)] for name, parameter in module.named_parameters()}
    with LiveTensorBytes() as meter:
        replay(recording, targets)
    return values, meter.peak


@pytest.mark.parametrize("build", [Layers, Rescaled, Copied])
def test_values_equal_those_of_a_usual_build(build):
    torch.manual_seed(1)
    expected = {name: parameter.tolist() for name, parameter in build().named_parameters()}
    assert computed(build)[0] == expected


def test_tensors_that_are_written_anew_are_not_held():
    assert computed(Layers)[1] <= 1.1 * WEIGHT


def test_source_of_a_copy_is_held_until_the_copy():
    assert computed(Copied)[1] <= 2.1 * WEIGHT


def test_tensors_that_change_later_are_held_until_then():
    assert LAYERS * WEIGHT <= computed(Rescaled)[1] <= 1.1 * LAYERS * WEIGHT


def test_without_draws_the_generator_stays():
    _, recording = record(Layers)
    before = torch.get_rng_state()
    replay(recording, {}, draw=False)
    assert torch.equal(torch.get_rng_state(), before)
