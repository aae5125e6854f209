"""Bytes of a frozen base by formula, against the module that the worker builds."""

import pytest

from service.plugins.planner import builtin_models, frozen_base
from service.plugins.planner.fit import FitEstimator
from service.plugins.planner.frozen_base import held_parameters, row_bytes
from service.plugins.planner.host_and_disk import start_bytes
from service.plugins.planner.trainable_parameters import trainable_model
from tests.unit.service.plugins.planner.test_model_structure import GPT, LLAMA, spec_of
from worker.engine import quantisation
from worker.engine.frozen_base import hold_base
from worker.engine.half_parameters import low_half, split_parameters
from worker.engine.trainable import freeze_parameters
from worker.tasks.builtin_models import build_builtin

GIB = 2**30
LLAMA_8B = {
    **LLAMA,
    "layers": 32,
    "width": 4096,
    "heads": 32,
    "key_value_heads": 8,
    "feed_forward": 14336,
    "context": 8192,
    "vocab": 128256,
}


def trained(model, dtype, **changes):
    spec = spec_of(model, lora_rank=4, lora={"base_dtype": dtype}, **changes)
    return spec, trainable_model(builtin_models.structure_of(spec.model), spec)


def test_constants_equal_those_of_the_worker():
    assert (frozen_base.BLOCK, frozen_base.CHUNK) == (quantisation.BLOCK, quantisation.CHUNK)
    for columns in (1, 63, 64, 65, 4096):
        for dtype in ("int8", "nf4"):
            assert row_bytes(columns, dtype) == quantisation.row_bytes(columns, dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "nf4"])
@pytest.mark.parametrize("model", [GPT, {**GPT, "tied": False}, LLAMA, {**LLAMA, "tied": True}])
def test_held_bytes_equal_those_of_the_worker(model, dtype):
    spec, trainable = trained(model, dtype)
    module = build_builtin(spec.model)
    freeze_parameters(spec, module)
    if dtype != "fp32":
        hold_base(module, dtype)
    assert held_parameters(spec, trainable).total == sum(parameter.nbytes for parameter in module.parameters())


@pytest.mark.parametrize("trainable", [None, ["blocks.0.*"]])
def test_bytes_of_parameters_in_bf16_equal_those_of_the_worker(trainable):
    spec = spec_of(GPT, precision="bf16", param_dtype="bf16", trainable=trainable)
    module = build_builtin(spec.model)
    freeze_parameters(spec, module)
    split_parameters(module, "fp32", round_frozen=True)
    stored = [*module.parameters(), *(low_half(parameter) for parameter in module.parameters())]
    planned = trainable_model(builtin_models.structure_of(spec.model), spec)
    assert held_parameters(spec, planned).total == sum(value.nbytes for value in stored if value is not None)


@pytest.mark.parametrize(("dtype", "limit"), [("bf16", 32 * GIB), ("nf4", 16 * GIB)])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_adapters_of_8b_fit_one_gpu_with_short_rows(dtype, limit, checkpointing):
    data = {"source": "jsonl", "path": "/data/x.jsonl", "max_length": 512, "packing": False}
    spec = spec_of(
        LLAMA_8B,
        data=data,
        precision="bf16",
        lora_rank=16,
        lora={"base_dtype": dtype},
        batch={"size": 16, "micro_size": 1},
        activation_checkpointing=checkpointing,
    )
    estimate = FitEstimator(builtin_models.structure_of(spec.model)).estimate(spec)
    assert estimate.peak < limit


@pytest.mark.parametrize(
    ("precision", "dtype", "converted"), [("bf16", "bf16", 0), ("fp32", "bf16", 4), ("bf16", "nf4", 8)]
)
def test_converted_weight_is_counted(precision, dtype, converted):
    spec, trainable = trained(LLAMA, dtype, precision=precision)
    largest = max(p.size for p in trainable.structure.parameters if p.kind == "linear" and "layers" in p.name)
    assert held_parameters(spec, trainable).converted(gathers=False) == converted * largest


def test_quantised_weights_are_gathered_as_they_are_held():
    spec, trainable = trained({**LLAMA, "width": 128}, "nf4", precision="bf16")
    held = held_parameters(spec, trainable)
    for parameter in trainable.structure.parameters:
        quantised = held.held(parameter) < parameter.size
        assert held.gathered(parameter) == (-(-held.held(parameter) // 2) if quantised else parameter.size)
    assert held.values < trainable.structure.count


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_start_holds_the_largest_tensor(strategy):
    spec, trainable = trained(LLAMA, "nf4", strategy=strategy)
    feed_forward = LLAMA["width"] * trainable.structure.transformer.feed_forward
    largest = max(4 * LLAMA["vocab"] * LLAMA["width"], (4 + 8) * feed_forward)
    assert start_bytes(spec, trainable, cpu=False) == largest
    assert start_bytes(spec, trainable, cpu=True) == largest + held_parameters(spec, trainable).total
