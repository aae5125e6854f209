"""Peak memory of a step: invariants for all sizes, and the memory of real blocks."""

from functools import partial

import pytest
import torch

from service.plugins.planner import builtin_models
from service.plugins.planner.activation_memory import (
    MAX_LOGITS,
    Adapters,
    ComputeDtype,
    block_ops,
    head_of,
    pinned_bytes,
    saved,
    tokens_of_chunk,
    tokens_of_linear_chunk,
)
from service.plugins.planner.block_model import MAX_ROW_TOKENS, ROW_MULTIPLE, masked_tokens, tokens_per_example
from service.plugins.planner.fit import FitEstimator
from tests.support.host_memory import LiveTensorBytes
from tests.unit.service.plugins.planner.test_model_structure import GPT, spec_of
from trainyard.contract.spec.decoders import GptModel, LlamaModel
from worker.tasks import causal_lm, language_loss, linear_loss, select
from worker.tasks.gpt import Block
from worker.tasks.llama import Layer
from worker.tasks.packing import packed_mask

BIG = {**GPT, "layers": 8, "width": 256, "heads": 8}


def estimate(model=BIG, **changes):
    batch = {"size": 8, "micro_size": 8 // changes.get("gpus", 1), **changes.pop("batch", {})}
    spec = spec_of(model, batch=batch, **changes)
    return FitEstimator(builtin_models.structure_of(spec.model)).estimate(spec)


def count(model=BIG):
    return builtin_models.structure_of(GptModel(**model)).count


def test_constants_equal_those_of_the_worker():
    assert (MAX_LOGITS, MAX_ROW_TOKENS) == (language_loss.MAX_LOGITS, causal_lm.MAX_ROW_TOKENS)
    assert ROW_MULTIPLE == select.ROW_MULTIPLE
    widths = (64, 300, 1024, 4096)
    assert [tokens_of_chunk(width, 500) for width in widths] == [
        language_loss.tokens_of_chunk(width, 500) for width in widths
    ]
    most = language_loss.LINEAR_LOGITS * language_loss.MAX_LOGITS
    vocabularies = (100, 128_256, 262_144, 2**29, 2**30)
    assert [tokens_of_linear_chunk(vocabulary) for vocabulary in vocabularies] == [
        linear_loss.tokens_of_chunk(vocabulary, most) for vocabulary in vocabularies
    ]


def test_adam_in_fp32_takes_16_bytes_per_parameter():
    assert estimate().least == 16 * count()


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "fsdp"])
def test_sharded_state_is_divided_by_ranks(strategy):
    parts = estimate(gpus=4, strategy=strategy).memory.parts
    assert (parts["parameters"], parts["optimizer"]) == (count(), 2 * count())


def test_ddp_accumulates_gradients_outside_its_buckets():
    at_once = estimate(gpus=2, strategy="ddp").memory.parts
    waiting = estimate(gpus=2, strategy="ddp", batch={"micro_size": 2}).memory.parts
    assert (at_once["buckets"], at_once["gradients"]) == (4 * count(), 0)
    assert (waiting["buckets"], waiting["gradients"]) == (4 * count(), 4 * count())


def test_each_strategy_needs_less_than_the_one_before():
    peaks = [estimate(gpus=4, strategy=strategy).peak for strategy in ("ddp", "zero2", "fsdp")]
    assert peaks == sorted(peaks, reverse=True)


def test_activation_checkpointing_saves_less():
    peaks = [estimate(activation_checkpointing=how).peak for how in ("none", "selective", "full")]
    assert peaks == sorted(peaks, reverse=True)


def test_offloaded_activations_are_host_memory():
    batch = {"size": 1024, "micro_size": 1024}
    full, offload = (estimate(activation_checkpointing=how, batch=batch).memory for how in ("full", "offload"))
    each = 4 * 1024 * GPT["context"] * BIG["width"]
    # Of the eight inputs of blocks, one is on the device while it is copied.
    assert full.peak - offload.peak > 4 * each
    assert (full.host, offload.host) == (0, 8 * each)
    assert [pinned_bytes(size) for size in (0, 1000, 1024, 1025)] == [0, 1024, 1024, 2048]


def test_base_parameters_have_no_moments_with_adapters():
    parts = estimate(lora_rank=8).memory.parts
    assert parts["parameters"] > 4 * count()
    assert parts["optimizer"] < 0.2 * 8 * count()


def test_larger_evaluations_are_counted():
    data = {"source": "jsonl", "path": "/data/x.jsonl", "eval_path": "/data/y.jsonl"}
    usual = estimate(data=data)
    large = estimate(data=data, evaluation={"every_steps": 1, "micro_size": 4096})
    assert large.memory.phase == "the evaluation"
    assert large.peak > usual.peak
    assert estimate(data=data, evaluation={"every_steps": 1, "micro_size": 4}) == usual


def test_offloaded_state_is_host_memory():
    result = estimate(gpus=2, strategy="fsdp", fsdp={"cpu_offload": True})
    assert result.memory.parts["optimizer"] == 0
    assert result.memory.host == 8 * count()


def test_large_logits_are_computed_in_chunks():
    model = builtin_models.structure_of(GptModel(**{**BIG, "vocab": 128_000})).transformer
    dtype, size = ComputeDtype(2, autocast=True), 2 * 50_000 * model.width
    few, many, scaled = (
        head_of(model, tokens, dtype, frozen=False, linear=linear)
        for tokens, linear in ((500, True), (50_000, True), (50_000, False))
    )
    assert (few.chunks, many.chunks, scaled.chunks) == (1, 13, 96)
    assert many.backward - 2 * size <= 2 * 8 * MAX_LOGITS
    assert scaled.backward - size < 15 * MAX_LOGITS


@pytest.mark.parametrize(
    ("changes", "masked"),
    [
        ({}, False),
        ({"precision": "fp32"}, True),
        ({"precision": "fp16"}, True),
        ({"backend": "gloo"}, True),
        ({"model": {**BIG, "dropout": 0.1}}, True),
        ({"model": {**BIG, "width": 24, "heads": 2}}, True),
        ({"data": {"source": "jsonl", "path": "/x", "packing": False}}, False),
    ],
)
def test_packed_rows_have_a_mask_where_no_kernel_replaces_it(changes, masked):
    document = {"data": {"source": "jsonl", "path": "/x"}, "precision": "bf16", "backend": "nccl", **changes}
    spec = spec_of(document.pop("model", BIG), **document)
    model = builtin_models.structure_of(spec.model).transformer
    assert masked_tokens(spec, model, 100) == (100 if masked else 0)


def test_tokens_per_example():
    lengths = [
        tokens_per_example(
            spec_of({"source": "hf", "path": "/m"}, data={"source": "jsonl", "path": "/x", **data}), context
        )
        for data, context in (({"max_length": 100}, 512), ({}, 512), ({}, 8192), ({}, None))
    ]
    assert lengths == [99, 511, 2047, 2047]


@pytest.mark.parametrize(
    ("max_length", "context", "padded"),
    [(100, 512, 128), (129, 512, 128), (130, 512, 256), (400, 450, 450), (None, None, 2048)],
)
def test_rows_on_gpus_are_padded_within_the_context(max_length, context, padded):
    data = {"source": "jsonl", "path": "/x"} | ({"max_length": max_length} if max_length else {})
    spec = spec_of({"source": "hf", "path": "/m"}, data=data, backend="nccl")
    assert tokens_per_example(spec, context) == padded


def gpt_block(width, heads, mask):
    return GptModel(layers=1, width=width, heads=heads), partial(Block(width, heads, 0.0), within=mask)


def llama_layer(width, heads, mask):
    model = LlamaModel(layers=1, width=width, heads=heads, key_value_heads=2, feed_forward=160)
    return model, partial(Layer(model), positions=torch.arange(32).repeat(3, 1), within=mask)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("build", [gpt_block, llama_layer])
def test_block_saves_the_counted_bytes(build, packed, bf16):
    width, heads, examples, length = 64, 4, 3, 32
    mask = packed_mask(torch.arange(length // 2).repeat(examples, 2)) if packed else None
    spec, block = build(width, heads, mask)
    x = torch.randn(examples, length, width, requires_grad=True)
    with LiveTensorBytes() as counted, torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        counted.add(x, *block.func.parameters())
        before = counted.live
        y = block(x)
        saved_bytes = counted.live - before - y.nbytes
    model = builtin_models.structure_of(spec).transformer
    dtype = ComputeDtype(2 if bf16 else 4, autocast=bf16)
    messages = saved(block_ops(model, examples * length, dtype, None, length if packed else 0), dtype) - x.nbytes
    assert messages == pytest.approx(saved_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("autocast", "dora", "expected"), [(True, True, (2 + 4) * 160 * 10), (True, False, 0), (False, True, 0)]
)
def test_inputs_of_separate_adapters_have_gradients_in_two_dtypes(autocast, dora, expected):
    model = builtin_models.structure_of(LlamaModel(layers=1, width=64, heads=4, feed_forward=160)).transformer
    plain, adapted = (
        block_ops(model, 10, ComputeDtype(2, autocast=autocast), adapters)
        for adapters in (None, Adapters(4, frozenset({"down_proj"}), dora=dora))
    )
    more = [other.grad_in - one.grad_in for one, other in zip(plain, adapted, strict=True)]
    assert more == [0] * 7 + [expected]
