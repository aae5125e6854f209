"""A frozen base that is held in fewer bits computes as one that was rounded before the training."""

import copy
import gc

import pytest
import torch
from torch import nn

from tests.support.host_memory import LiveTensorBytes
from trainyard.contract.spec.decoders import LlamaModel
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.engine.activations import checkpoint_activations
from worker.engine.frozen_base import FrozenLinear, held_layers, hold_base, round_base
from worker.engine.trainable import freeze_parameters
from worker.tasks.builtin_models import build_builtin
from worker.tasks.llama import Llama

pytest.importorskip("peft")

TOKENS = torch.arange(24).view(2, 12) * 7 % 200
DTYPES = pytest.mark.parametrize("dtype", ["bf16", "int8", "nf4"])


def spec(name="llama", **changes):
    model = {"source": "builtin", "name": name, "layers": 2, "width": 64, "heads": 4, "context": 16, "vocab": 257}
    data = {"source": "builtin", "name": "stdlib"}
    return parse_spec({"task": "causal_lm", "steps": 1, "lora_rank": 4, "model": model | changes, "data": data})


def with_adapters(spec, model):
    """Add adapters whose outputs are not zero."""
    freeze_parameters(spec, model)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.02)
    return model


def held_and_rounded(spec, dtype):
    """Return a model with a held base, and one in fp32 with the same values."""
    torch.manual_seed(0)
    held = build_builtin(spec.model)
    rounded = copy.deepcopy(held)
    round_base(rounded, dtype)
    held, rounded = with_adapters(spec, held), with_adapters(spec, rounded)
    hold_base(held, dtype)
    return held, rounded


def trained(model):
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@DTYPES
class TestComputation:
    @pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(("name", "tied"), [("llama", False), ("llama", True), ("gpt", False), ("gpt", True)])
    def test_gradients_equal_those_of_a_rounded_base(self, dtype, name, tied, autocast):
        results = []
        for model in held_and_rounded(spec(name, tied=tied), dtype):
            with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                loss = model(TOKENS, TOKENS.roll(-1))
            loss.backward()
            results.append((loss.detach(), {key: value.grad for key, value in trained(model).items()}))
        (held, held_gradients), (rounded, gradients) = results
        assert torch.equal(held, rounded)
        assert held_gradients.keys() == gradients.keys()
        for key, gradient in gradients.items():
            assert torch.equal(held_gradients[key], gradient), key
            assert gradient.any(), key

    @pytest.mark.parametrize("how", ["selective", "full"])
    def test_recomputed_activations_give_identical_gradients(self, dtype, how):
        plain, _ = held_and_rounded(spec(), dtype)
        recomputing = copy.deepcopy(plain)
        checkpoint_activations(recomputing, how)
        for model in (plain, recomputing):
            model(TOKENS, TOKENS.roll(-1)).backward()
        for key, parameter in trained(plain).items():
            assert torch.equal(parameter.grad, trained(recomputing)[key].grad), key

    @pytest.mark.slow
    def test_compiled_layers_have_no_graph_break(self, dtype):
        plain, _ = held_and_rounded(spec(), dtype)
        compiled = copy.deepcopy(plain)
        layer = compiled.model.layers[0]
        layer.forward = torch.compile(layer.forward, backend="eager", fullgraph=True)
        for model in (plain, compiled):
            model(TOKENS, TOKENS.roll(-1)).backward()
        for key, parameter in trained(plain).items():
            assert torch.equal(parameter.grad, trained(compiled)[key].grad), key

    def test_backward_saves_no_converted_weight(self, dtype):
        linear = nn.Linear(256, 512, bias=False).requires_grad_(False)
        model = nn.ModuleDict({"layer": linear, "other": nn.Linear(1, 1)})
        hold_base(model, dtype)
        saved = []
        inputs = torch.randn(2, 256, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda same: same):
            model["layer"](inputs)
        assert {tensor.data_ptr() for tensor in saved} == {model["layer"].weight.data_ptr()}


class TestHeldLayers:
    def frozen(self, **changes):
        torch.manual_seed(0)
        return build_builtin(spec(**changes).model).requires_grad_(False)

    def test_embeddings_and_output_layer_are_not_quantised(self):
        layers = held_layers(self.frozen(), "nf4")
        assert {name for name, dtype in layers.items() if dtype == "bf16"} == {"model.embed_tokens", "lm_head"}
        assert len(layers) == 2 + 2 * 7

    def test_tied_output_layer_stays_tied(self):
        model = self.frozen(tied=True)
        hold_base(model, "nf4")
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert model.lm_head.weight.dtype == torch.bfloat16

    def test_norms_and_biases_stay_in_fp32(self):
        model = self.frozen(name="gpt")
        hold_base(model, "nf4")
        assert {parameter.dtype for parameter in model.parameters() if parameter.ndim == 1} == {torch.float32}

    def test_adapters_stay_in_fp32(self):
        held, _ = held_and_rounded(spec(), "nf4")
        assert {parameter.dtype for parameter in trained(held).values()} == {torch.float32}
        assert isinstance(held.model.layers[0].mlp.up_proj.base_layer, FrozenLinear)

    def test_model_of_other_layers_is_refused(self):
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Linear(4, 4)).requires_grad_(False)
        with pytest.raises(RefusedError, match="most weights of this model are in layers other than"):
            hold_base(model, "bf16")


@pytest.mark.parametrize(
    "dtype", ["nf4", pytest.param("bf16", marks=pytest.mark.slow), pytest.param("int8", marks=pytest.mark.slow)]
)
def test_conversion_needs_memory_for_one_more_layer(dtype):
    torch.manual_seed(0)
    model = Llama(LlamaModel(layers=6, width=256, heads=4, context=16, vocab=257)).requires_grad_(False)
    before = sum(parameter.nbytes for parameter in model.parameters())
    gc.collect()
    with LiveTensorBytes() as meter:
        meter.add(*model.parameters())
        hold_base(model, dtype)
        gc.collect()
        assert meter.live < {"bf16": 0.51, "int8": 0.3, "nf4": 0.2}[dtype] * before
        assert meter.peak < 1.15 * before
