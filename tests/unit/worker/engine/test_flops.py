"""Model FLOPs, compared with those that torch counts, and peaks of devices."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.training_spec import parse_spec
from worker.data.examples import BatchTokens
from worker.engine.flops import model_flops, peak_flops, run_peak_flops
from worker.tasks.base import Task
from worker.tasks.gpt import Gpt
from worker.tasks.llama import Llama

TOKENS = 64
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Text(Task):
    tokens_per_example = TOKENS


def flops(task, model, described=None):
    """Return the FLOPs of one example with the task's mean number of tokens."""
    each = task.tokens_per_example
    return model_flops(task, model, described).of(1, BatchTokens(each, each**2))


def build(kind, **sizes):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**SIZES, **sizes)
    config._attn_implementation = config._experts_implementation = "eager"
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def counted(model):
    """Return the FLOPs of one example's forward and backward that torch counts."""
    tokens = torch.arange(TOKENS)[None]
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False).logits.sum().backward()
    return counter.get_total_flops()


def only_last_layer(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("model.layers.2."))
    return model


def test_head_counts_for_targets_alone():
    model = Llama(LlamaModel(width=64, layers=1, heads=4, key_value_heads=2, feed_forward=96, context=TOKENS))
    every, few = (model_flops(Text(), model, None).of(1, BatchTokens(TOKENS, 0.0, n)) for n in (None, 16))
    assert every - few == 6 * 256 * 64 * (TOKENS - 16)


class TestTransformers:
    @pytest.mark.parametrize(
        ("kind", "sizes"),
        [
            ("Llama", {}),
            ("Llama", {"tie_word_embeddings": True}),
            ("Qwen3", {"head_dim": 32}),
            ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
            ("Qwen3Moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 32}),
        ],
        ids=["grouped queries", "tied", "wide heads", "experts", "many experts"],
    )
    def test_flops_equal_those_that_torch_counts(self, kind, sizes):
        model = build(kind, **sizes)
        assert flops(Text(), model) == pytest.approx(counted(model), rel=0.02)

    @pytest.mark.parametrize("tied", [True, False])
    def test_flops_of_the_builtin_llama_equal_those_of_transformers(self, tied):
        spec = LlamaModel(
            vocab=SIZES["vocab_size"],
            width=SIZES["hidden_size"],
            feed_forward=SIZES["intermediate_size"],
            layers=SIZES["num_hidden_layers"],
            heads=SIZES["num_attention_heads"],
            key_value_heads=SIZES["num_key_value_heads"],
            tied=tied,
        )
        theirs = flops(Text(), build("Llama", tie_word_embeddings=tied))
        assert flops(Text(), Llama(spec), spec) == theirs

    def test_layers_below_the_first_trained_one_have_no_backward(self):
        model = only_last_layer(build("Llama"))
        assert flops(Text(), model) == pytest.approx(counted(model), rel=0.02)


class TestPeak:
    @pytest.mark.parametrize(
        ("name", "precision", "tf32", "expected"),
        [
            ("NVIDIA H200", "bf16", False, 989.4e12),
            ("NVIDIA H100 80GB HBM3", "fp32", True, 494.7e12),
            ("NVIDIA H100 PCIe", "bf16", False, 756e12),
            ("NVIDIA A100-SXM4-80GB", "fp32", False, 19.5e12),
            ("Tesla V100-SXM2-16GB", "bf16", False, None),
            ("NVIDIA A10G", "bf16", False, None),
            ("NVIDIA GeForce RTX 4090", "bf16", False, 165.2e12),
            ("NVIDIA RTX 6000 Ada Generation", "bf16", False, 364.2e12),
            ("NVIDIA RTX A6000", "bf16", False, 154.8e12),
            ("NVIDIA GB200", "bf16", False, 2500e12),
            ("AMD Instinct MI300X", "bf16", False, 1307.4e12),
            ("Something new", "bf16", False, None),
        ],
    )
    def test_peak_is_selected_by_device_name(self, name, precision, tf32, expected):
        assert peak_flops(name, precision, tf32=tf32) == expected


class TestFlops:
    class Text(Task):
        tokens_per_example = 8

    @pytest.mark.parametrize("tied", [True, False])
    def test_flops_of_a_transformer(self, tied):
        size = GptModel(layers=2, width=16, heads=2, context=8, vocab=32, tied=tied)
        model = Gpt(size)
        # Lookups do not multiply: positions never, and token embeddings only if the head shares their weight.
        looked_up = 8 * 16 + (0 if tied else 32 * 16)
        n = sum(p.numel() for p in model.parameters()) - looked_up
        assert flops(self.Text(), model, size) == 6 * n * 8 + 12 * 2 * 16 * 8**2

    def test_a_frozen_parameter_has_no_gradient_to_compute(self):
        model = nn.Linear(4, 4, bias=False).requires_grad_(False)
        assert flops(self.Text(), model) == 4 * 16 * 8

    def test_flops_of_the_task_take_precedence(self):
        class Own(self.Text):
            def flops_per_example(self, model):
                return 7

        assert flops(Own(), nn.Identity()) == 7.0


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_peak_of_a_run_in_fp8_is_that_in_bf16(monkeypatch, precision):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    document = {"task": "regression", "steps": 1, "gpus": 2, "precision": precision}
    model, data = {"source": "builtin", "name": "mlp"}, {"source": "builtin", "name": "parity"}
    spec = parse_spec(document | {"model": model, "data": data})
    assert run_peak_flops(spec, torch.device("cuda", 0)) == 2 * 989.4e12
    assert run_peak_flops(spec, torch.device("cpu")) is None
