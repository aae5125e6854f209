"""Packed rows: attention by a kernel that takes boundaries equals attention with a mask, in every kind of model."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from tests.support import varlen
from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.text_data import TextFiles
from worker.engine.activations import checkpoint_activations
from worker.tasks.causal_lm import build_builtin_on_text
from worker.tasks.hf_forward import read_traits, read_traits_at_once, set_forward
from worker.tasks.packing import attend, attend_by_loop, boundaries_of, packed_mask
from worker.tasks.varlen_kernel import attend_by_kernel

CPU = torch.device("cpu")
SIZES = {"layers": 2, "width": 32, "heads": 4, "context": 48, "vocab": 260}
BUILTIN = {"gpt": GptModel(**SIZES), "llama": LlamaModel(**SIZES, key_value_heads=2)}
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 0, 0, 0]])
ENDS = torch.tensor([[3, 5, 9, 9], [6, 9, 9, 9]], dtype=torch.int32)
"""The last example of the second row is padding, and both rows repeat their last end."""


def projections(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, heads, 9, 8, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]


def gradients_of(mixed, inputs):
    torch.manual_seed(1)
    # Padding has no gradient.
    weights = torch.randn(mixed.shape)
    weights[1, :, 6:] = 0
    return torch.autograd.grad((mixed * weights).sum(), inputs)


class TestAttention:
    @pytest.mark.parametrize("by", [attend_by_kernel, attend_by_loop])
    def test_values_and_gradients_equal_those_with_a_mask(self, by):
        inputs = projections()
        masked, separate = attend(*inputs, packed_mask(POSITIONS)), by(*inputs, boundaries_of(ENDS, 9))
        assert separate.shape == masked.shape
        torch.testing.assert_close(separate[0], masked[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(separate[1, :, :6], masked[1, :, :6], rtol=0, atol=1e-6)
        for one, other in zip(gradients_of(separate, inputs), gradients_of(masked, inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=3e-6)

    @pytest.mark.parametrize("window", [1, 2, 20])
    def test_window_counts_the_query_itself(self, window):
        inputs, boundaries = projections(), boundaries_of(ENDS, 9)
        index = torch.arange(9)
        near = packed_mask(POSITIONS) & (index[:, None] - index < window)
        masked = attend(*inputs, near)[0]
        for by in (attend_by_kernel, attend_by_loop):
            torch.testing.assert_close(by(*inputs, boundaries, window=window)[0], masked, rtol=0, atol=1e-6)

    def test_autocast_decides_the_dtype_of_the_kernel(self):
        q, k, v = projections()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert attend_by_kernel(q, k, v.bfloat16(), boundaries_of(ENDS, 9)).dtype == torch.bfloat16


def packed_task(folder, model, count=12):
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": "ab" * (3 + n % 7)}) + "\n" for n in range(count)))
    return build_builtin_on_text(model, TextFiles(path=str(path)))


def loss_and_gradients(task, model, batch):
    model.zero_grad()
    loss = task.loss_sum(model, batch)
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_equal(first, second):
    assert first[0] == pytest.approx(second[0], rel=1e-6)
    for name, gradient in first[1].items():
        assert torch.linalg.norm(gradient - second[1][name]) <= 1e-5 * torch.linalg.norm(gradient) + 1e-6, name


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_model_learns_the_same_by_kernel_and_mask(tmp_path, name, checkpointing):
    task = packed_task(tmp_path, BUILTIN[name])
    model = task.build_model()
    batch = task.examples.train_batch(np.arange(task.examples.train), CPU)
    masked = loss_and_gradients(task, model, batch)
    model.take_boundaries()
    if checkpointing != "none":
        checkpoint_activations(model, checkpointing)
    varlen.calls.clear()
    assert_equal(masked, loss_and_gradients(task, model, batch))
    recomputed = BUILTIN[name].layers if checkpointing == "full" else 0
    assert varlen.calls.count("forward") == BUILTIN[name].layers + recomputed


HF_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def hf_model(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(deepcopy(config)).eval()


KERNEL_MODELS = {
    "llama": LlamaConfig(**HF_SIZES),
    "sliding window": MistralConfig(**HF_SIZES, head_dim=8, sliding_window=3),
    "normalized queries": Qwen3Config(**HF_SIZES, head_dim=16),
    "scaled logits": CohereConfig(**HF_SIZES),
}
MASK_MODELS = {
    "soft cap": (Gemma2Config(**HF_SIZES, head_dim=8), "without flash attention"),
    "dropout": (LlamaConfig(**HF_SIZES, attention_dropout=0.1), "it has dropout in its attention"),
    "dropout by default": (
        GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=32),
        "it has dropout in its attention",
    ),
}


class TestHuggingFace:
    @pytest.mark.parametrize("config", KERNEL_MODELS.values(), ids=KERNEL_MODELS)
    def test_model_learns_the_same_by_kernel_and_mask(self, config):
        model = hf_model(config)
        traits = read_traits(model, packed=True)
        assert traits == read_traits_at_once(model, packed=True)
        assert traits.kernel_fit == (getattr(config, "head_dim", None) or 8, "")
        set_forward(model, traits)
        tokens = torch.arange(18).view(2, 9) * 7 % 64
        labels = tokens.roll(-1, dims=1)
        labels[1, 6:] = -100

        def run():
            model.zero_grad()
            loss = model(tokens, labels, POSITIONS, ends=ENDS)
            loss.backward()
            return loss.item(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

        masked = run()
        model.take_boundaries()
        varlen.calls.clear()
        assert_equal(masked, run())
        assert varlen.calls.count("forward") == 2

    @pytest.mark.parametrize(("config", "reason"), MASK_MODELS.values(), ids=MASK_MODELS)
    def test_model_that_the_kernel_cannot_compute_keeps_its_mask(self, config, reason):
        model = hf_model(config)
        before = model.config._attn_implementation
        assert reason in read_traits(model, packed=True).kernel_fit.obstacle
        assert reason in read_traits_at_once(model, packed=True).kernel_fit.obstacle
        assert model.config._attn_implementation == before

    def test_layers_that_drop_the_boundaries_keep_the_mask(self, monkeypatch):
        model = hf_model(KERNEL_MODELS["llama"])
        layer = model.model.layers[1].self_attn
        forward = layer.forward
        monkeypatch.setattr(layer, "forward", lambda cu_seq_lens_q=None, cu_seq_lens_k=None, **named: forward(**named))
        assert read_traits(model, packed=True).kernel_fit.obstacle == (
            "its layers do not pass boundaries to their attention"
        )

    def test_export_does_not_name_the_kernel(self, tmp_path):
        model = hf_model(KERNEL_MODELS["llama"])
        set_forward(model, read_traits(model, packed=True))
        model.take_boundaries()
        model.config.save_pretrained(tmp_path)
        assert "trainyard" not in (tmp_path / "config.json").read_text()

    def test_rows_without_boundaries_are_causal(self):
        model = hf_model(KERNEL_MODELS["llama"])
        set_forward(model, read_traits(model, packed=True))
        tokens = torch.arange(18).view(2, 9) * 7 % 64
        with torch.no_grad():
            before = model(tokens)
            model.take_boundaries()
            torch.testing.assert_close(model(tokens), before, rtol=0, atol=2e-6)


def test_rows_name_the_ends_of_their_examples(tmp_path):
    task = packed_task(tmp_path, BUILTIN["gpt"])
    width = task.examples.train_batch(np.arange(1), CPU)[3].shape[1]
    for count in (1, task.examples.train):
        inputs, _, positions, ends, _ = task.examples.train_batch(np.arange(count), CPU)
        assert ends.dtype == torch.int32
        assert ends.shape == (count, width)
        for row, row_ends in zip(positions, ends.tolist(), strict=True):
            assert row_ends[-1] == inputs.shape[1]
            starts = {0, *(end for end in row_ends if end < inputs.shape[1])}
            padding = min((start for start in starts if not row[start:].any()), default=inputs.shape[1])
            assert starts - {padding} == {i for i in range(padding) if row[i] == 0}
