"""Adapted layers in 16 bits: the results of peft within its own error, and peft's code for everything else."""

import copy

import pytest
import torch
from torch import nn

from tests.unit.worker.engine.test_frozen_base import TOKENS, spec, trained, with_adapters
from trainyard.contract.spec.training_spec import parse_spec
from worker.engine.activations import checkpoint_activations
from worker.engine.frozen_base import hold_base
from worker.tasks.builtin_models import build_builtin

peft = pytest.importorskip("peft")

from peft.tuners.lora.layer import Linear  # noqa: E402

from worker.engine.lora_linear import LoraLinear  # noqa: E402

HELD = pytest.mark.parametrize("held", [None, "bf16", "int8", "nf4"])


def model_with(held=None, **lora):
    document = spec().model_dump(mode="json", exclude_none=True)
    chosen = parse_spec(document | {"lora": document["lora"] | lora})
    torch.manual_seed(0)
    model = with_adapters(chosen, build_builtin(chosen.model))
    if held:
        hold_base(model, held)
    return model


def as_in_peft(model):
    other = copy.deepcopy(model)
    for module in other.modules():
        if type(module) is LoraLinear:
            module.__class__ = Linear
    return other


def run(model, dtype=None):
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = model(TOKENS, TOKENS.roll(-1))
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in trained(model).items()}
    model.zero_grad()
    return loss.detach(), gradients


def error(gradients, exact):
    whole, other = (torch.cat([values[name].flatten() for name in exact]) for values in (gradients, exact))
    return float(torch.linalg.norm(whole - other) / torch.linalg.norm(other))


@HELD
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_is_at_most_that_of_peft(held, dtype):
    model = model_with(held)
    exact_loss, exact = run(model)
    loss, gradients = run(model, dtype)
    former_loss, former = run(as_in_peft(model), dtype)
    limit = 2**-7 if dtype == torch.bfloat16 else 2**-10
    assert error(gradients, exact) <= min(1.15 * error(former, exact), limit)
    assert float(loss) == pytest.approx(float(exact_loss), rel=5e-5)
    assert float(former_loss) == pytest.approx(float(exact_loss), rel=5e-5)


@HELD
def test_runs_in_fp32_keep_every_bit(held):
    model = model_with(held)
    loss, gradients = run(model)
    expected, others = run(as_in_peft(model))
    assert torch.equal(loss, expected)
    assert all(torch.equal(gradients[name], others[name]) for name in others)


@pytest.mark.parametrize("lora", [{"dropout": 0.5}, {"dora": True}])
def test_other_variants_compute_as_in_peft(lora):
    model = model_with(**lora)
    torch.manual_seed(3)
    loss, gradients = run(model, torch.bfloat16)
    torch.manual_seed(3)
    expected, others = run(as_in_peft(model), torch.bfloat16)
    assert torch.equal(loss, expected)
    assert all(torch.equal(gradients[name], others[name]) for name in others)


def single(**lora):
    """Return a layer in bf16 with its input."""
    model = model_with(**lora)
    layer = next(module for module in model.modules() if type(module) is LoraLinear)
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(1)).bfloat16()
    return layer, x


def exact_result(layer, x, scaling):
    first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    weights = (weight.detach().bfloat16().double() for weight in (layer.base_layer.weight, second, first))
    base, second, first = weights
    return x.double() @ (base + scaling * second @ first).t()


@pytest.mark.parametrize(("lora", "scaling"), [({"alpha": 8}, 2.0), ({"alpha": 8, "rslora": True}, 4.0)])
def test_layer_is_the_sum_of_both_products(lora, scaling):
    layer, x = single(**lora)
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(x)
    expected = exact_result(layer, x, scaling)
    assert torch.linalg.norm(result.double() - expected) < 2**-7 * torch.linalg.norm(expected)


def test_switched_off_and_merged_adapters_and_hooks_are_left_to_peft():
    layer, x = single()
    with torch.autocast("cpu", torch.bfloat16):
        whole = layer(x)
        layer.enable_adapters(False)
        assert torch.equal(layer(x), layer.base_layer(x))
        layer.enable_adapters(True)
        assert torch.equal(layer(x), whole)
        calls = []
        hook = layer.lora_A["default"].register_forward_hook(lambda *args: calls.append(1))
        layer(x)
        assert calls == [1]
        hook.remove()
        layer.merge()
        assert torch.equal(layer(x), layer.base_layer(x))


def test_input_without_a_gradient_gets_none():
    layer, x = single()
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    assert x.grad is None
    assert all(parameter.grad is not None for parameter in trained(layer).values())


@HELD
@pytest.mark.parametrize("shape", [(2, 0), ()])
def test_input_may_have_no_rows_or_be_one_vector(held, shape):
    model = model_with(held)
    layer = next(module for module in model.modules() if type(module) is LoraLinear)
    x = torch.ones(*shape, layer.in_features, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(x)
        former = next(module for module in as_in_peft(model).modules() if type(module) is Linear)(x)
    assert result.shape == former.shape
    assert torch.allclose(result.float(), former.float(), rtol=0.02, atol=0.01)
    result.sum().backward()
    assert x.grad.shape == x.shape
    assert all(parameter.grad is not None for parameter in trained(layer).values())


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputed_activations_give_identical_gradients(how):
    plain = model_with("nf4")
    recomputing = copy.deepcopy(plain)
    checkpoint_activations(recomputing, how)
    (loss, gradients), (expected, others) = run(plain, torch.bfloat16), run(recomputing, torch.bfloat16)
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, gradients.values(), others.values()))


def test_names_and_kinds_are_those_of_peft():
    model = model_with("nf4")
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    assert len(layers) == 14
    assert all(type(layer) is LoraLinear for layer in layers)
    assert isinstance(layers[0], nn.Module)
    assert model.state_dict().keys() == as_in_peft(model).state_dict().keys()
