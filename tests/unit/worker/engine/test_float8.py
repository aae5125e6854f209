"""`precision: fp8`: which layers are converted, what they compute, and what is refused."""

import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.gpu.shapes import SHAPES
from trainyard.contract.spec.decoders import GptModel, LlamaModel
from worker.core.errors import RefusedError
from worker.engine.float8 import convert_linear_layers, float8_layers
from worker.tasks.gpt import Gpt
from worker.tasks.llama import Llama

CPU = torch.device("cpu")
OF_A_BLOCK = ("attention.qkv", "attention.out", "feed_forward.0", "feed_forward.2")


def gpt(**sizes):
    torch.manual_seed(0)
    return Gpt(GptModel(**{"layers": 2, "width": 32, "heads": 2, "context": 16} | sizes))


def trained(model, *, precision):
    """Return the loss of rows of 11 tokens, and all gradients."""
    if precision == "fp8":
        convert_linear_layers(model, CPU)
    tokens = torch.arange(22).view(2, 11)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"):
        loss = model(tokens, tokens + 1)
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


class TestLayers:
    @pytest.mark.parametrize("tied", [False, True])
    def test_layers_of_the_blocks_are_converted_and_the_head_is_not(self, tied):
        assert float8_layers(gpt(tied=tied)) == {f"blocks.{block}.{name}" for block in range(2) for name in OF_A_BLOCK}

    def test_layers_whose_sizes_are_no_multiples_of_16_are_left_out(self):
        sizes = {"width": 32, "heads": 4, "key_value_heads": 1, "feed_forward": 40, "layers": 1}
        attention = {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"}
        assert float8_layers(Llama(LlamaModel(**sizes))) == attention

    @pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
    def test_small_projections_of_keys_and_values_stay_in_bf16(self, shape):
        with torch.device("meta"):
            model = Llama(LlamaModel.model_validate(shape.document(dry=False)["model"] | {"layers": 1}))
        chosen = {name.rpartition(".")[2] for name in float8_layers(model)}
        assert chosen == {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}

    def test_frozen_and_shared_layers_are_left_out(self):
        model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(5)))
        model[1].requires_grad_(False)
        model[2].weight = model[3].weight
        assert float8_layers(model) == {"0"}

    def test_parameters_and_their_names_stay_the_same(self):
        model = gpt()
        before = dict(model.named_parameters())
        state = list(model.state_dict())
        convert_linear_layers(model, CPU)
        assert list(model.state_dict()) == state
        assert all(parameter is before[name] for name, parameter in model.named_parameters())


def test_emulated_products_are_close_to_bf16_and_not_equal():
    loss, gradients = trained(gpt(), precision="bf16")
    rounded_loss, rounded = trained(gpt(), precision="fp8")
    assert rounded_loss == pytest.approx(loss, rel=1e-3)
    assert rounded_loss != loss
    # The three mantissa bits of e4m3 alone round by up to 6 %.
    assert 0.01 < torch.linalg.norm(rounded - gradients) / torch.linalg.norm(gradients) < 0.08


def test_each_operand_is_cast_once_in_a_micro_batch():
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Linear(64, 16))
    convert_linear_layers(model, CPU)
    casts = Counter()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and func == torch.ops.aten._to_copy.default:
                casts[result.dtype] += 1
            return result

    with Counting(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(32, 32, requires_grad=True)).sum().backward()
    # Input, weight and gradient of both layers.
    assert (casts[torch.float8_e4m3fn], casts[torch.float8_e5m2]) == (4, 2)


class TestRefusals:
    def test_model_without_such_layers(self):
        with pytest.raises(RefusedError, match="this model trains none of them beside its output layer"):
            convert_linear_layers(gpt(width=8), CPU)

    def test_missing_library(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torchao.float8", None)
        with pytest.raises(RefusedError, match="needs torchao, which cannot be imported") as refused:
            convert_linear_layers(gpt(), CPU)
        assert "pip install 'trainyard[fp8]'" in refused.value.hint

    def test_gpu_of_an_older_generation(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
        with pytest.raises(RefusedError, match=r"NVIDIA A100-SXM4-80GB has 8\.0"):
            convert_linear_layers(gpt(), torch.device("cuda", 0))
