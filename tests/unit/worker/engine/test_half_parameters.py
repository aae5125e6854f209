"""Parameters in bf16: which are split, ties, the type of gradients, and the exact values."""

from unittest.mock import Mock

import pytest
import torch
from torch import nn

from tests.support.checkpoints import save_checkpoint
from trainyard.contract.spec.optimization import Ema
from worker.checkpoint.tensors import ModelTensors
from worker.engine.callbacks.weight_average import WeightAverage
from worker.engine.half_parameters import exact_value, low_half, low_halves, set_exact_value, split_parameters
from worker.engine.state import trained_state


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


@pytest.fixture
def module():
    module = Tied()
    split_parameters(module, "fp32")
    return module


def test_trained_parameters_alone_are_split(module):
    dtypes = {name: value.dtype for name, value in module.state_dict().items()}
    assert {name for name, dtype in dtypes.items() if dtype == torch.bfloat16} == {
        *("embedding.weight", "head.weight", "norm.weight", "norm.bias")
    }
    assert dtypes["frozen.weight"] == dtypes["norm.running_mean"] == torch.float32


def test_frozen_parameters_can_be_rounded():
    module = Tied()
    split_parameters(module, "fp32", round_frozen=True)
    assert torch.equal(module.frozen.weight, Tied().frozen.weight.bfloat16())
    assert low_half(module.frozen.weight) is None
    assert not module.frozen.weight.requires_grad


def test_tied_parameters_stay_tied(module):
    assert module.head.weight is module.embedding.weight
    assert set(low_halves(module)) == {"embedding.weight", "head.weight", "norm.weight", "norm.bias"}
    assert low_half(module.frozen.weight) is None


def test_exact_values_are_those_from_before(module):
    assert torch.equal(exact_value(module.embedding.weight), Tied().embedding.weight)
    values = torch.randn(9, 4)
    set_exact_value(module.embedding.weight, values)
    assert torch.equal(exact_value(module.head.weight), values)
    assert torch.equal(module.head.weight, values.bfloat16())


@pytest.mark.parametrize(("gradients", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_gradients_of_micro_batches_add_up_in_their_type(gradients, dtype):
    module = nn.Linear(1, 1, bias=False)
    split_parameters(module, gradients)
    for value in (256.0, 1.0):
        (module.weight * value).sum().backward()
    assert module.weight.grad.dtype == dtype
    # bf16 has 8 digits: 257 is between two of its values.
    assert float(module.weight.grad) == (257.0 if gradients == "fp32" else 256.0)


def test_average_is_that_of_the_exact_values(module):
    result = Mock(step=1)
    average = WeightAverage(Ema(decay=0.5), module)
    first, second = torch.randn(9, 4), torch.randn(9, 4)
    for values in (first, second):
        set_exact_value(module.embedding.weight, values)
        average.on_step_end(result)
    expected = torch.lerp(first, second, 0.5)
    assert torch.equal(average.state()["embedding.weight"], expected)
    with average.applied():
        assert torch.equal(exact_value(module.embedding.weight), expected)
    assert torch.equal(exact_value(module.embedding.weight), second)


def test_gathered_state_has_exact_values(module):
    assert torch.equal(trained_state(module, whole=True)["head.weight"], Tied().head.weight)


def test_checkpoints_are_read_with_exact_values(tmp_path, module):
    checkpoint = save_checkpoint(tmp_path, module)
    tensors = ModelTensors(checkpoint, [path.name for path in checkpoint.root.iterdir()])
    read = tensors.read(["head.weight", "norm.running_mean"])
    assert torch.equal(read["head.weight"], Tied().head.weight)
    assert tensors.bytes_of("head.weight") == 4 * 36
