"""The planned memory of an optimizer equals that of the real one."""

import gc

import pytest
import torch

from service.plugins.planner import builtin_models, host_and_disk
from service.plugins.planner.optimizer_state import (
    BLOCK,
    BUCKET,
    LION_CHUNK,
    SHORTEST_ROW,
    state_bytes,
    state_elements,
    update_bytes,
)
from service.plugins.planner.trainable_parameters import trainable_model
from tests.support.host_memory import LiveTensorBytes
from tests.unit.service.plugins.planner.test_model_structure import GPT, spec_of
from tests.unit.service.plugins.planner.test_step_memory import estimate
from worker.engine.half_parameters import split_parameters
from worker.engine.optim import build_optimizer
from worker.engine.optimizers import bucketed, encodings, lion
from worker.engine.trainable import freeze_parameters
from worker.tasks.gpt import Gpt
from worker.tasks.image_classification import Convnet

CONVNET = {"source": "builtin", "name": "convnet"}
OPTIMIZERS = [{"name": name} for name in ("adam", "adamw", "lion", "adafactor", "muon", "sgd")]
OPTIMIZERS.append({"name": "sgd", "momentum": 0.9})


def stored(optimizer):
    """Return the number of stored values without the counts of steps."""
    values = (value for state in optimizer.state.values() for key, value in state.items() if key != "step")
    return sum(value.numel() for value in values if value is not None)


@pytest.mark.parametrize("options", OPTIMIZERS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (GPT, {}),
        (GPT | {"tied": False}, {}),
        (GPT, {"lora_rank": 3}),
        (CONVNET, {"task": "image_classification", "data": {"source": "builtin", "name": "digits"}}),
    ],
    ids=["tied", "untied", "lora", "convnet"],
)
def test_planned_values_equal_those_of_the_optimizer(model, changes, options):
    spec = spec_of(model, optimizer=options, **changes)
    module = Gpt(spec.model) if model["name"] == "gpt" else Convnet(32, 10, 0.0)
    freeze_parameters(spec, module)
    optimizer = build_optimizer(spec, module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    trainable = trainable_model(builtin_models.structure_of(spec.model), spec)
    assert state_elements(spec.optimizer, trainable) == stored(optimizer)


def test_average_of_the_weights_is_stored_and_saved():
    parts = [estimate(ema=ema).memory.parts["optimizer"] for ema in (None, {"decay": 0.9})]
    needs = []
    for ema in (None, {"decay": 0.9}):
        spec = spec_of(ema=ema)
        trainable = trainable_model(builtin_models.structure_of(spec.model), spec)
        needs.append(host_and_disk.disk_need(spec, trainable).checkpoint_bytes)
    assert parts[1] == 1.5 * parts[0]
    assert needs[1] > needs[0] + 4 * trainable.trained_count


def test_constants_equal_those_of_the_worker():
    assert lion.CHUNK == LION_CHUNK
    assert (encodings.BLOCK, encodings.SHORTEST_ROW, bucketed.BUCKET) == (BLOCK, SHORTEST_ROW, BUCKET)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_planned_bytes_of_moments_equal_those_of_the_optimizer(name, dtype):
    model = GPT | {"width": 80, "context": 65}
    spec = spec_of(model, precision="bf16", param_dtype="bf16", optimizer={"name": name, "state_dtype": dtype})
    module = Gpt(spec.model)
    split_parameters(module, "fp32")
    optimizer = build_optimizer(spec, module)
    values = (value for state in optimizer.state.values() for key, value in state.items() if key != "step")
    trainable = trainable_model(builtin_models.structure_of(spec.model), spec)
    assert state_bytes(spec.optimizer, trainable) == sum(value.nbytes for value in values)


@pytest.mark.parametrize(
    ("name", "dtype", "gradients"),
    [("adamw", "fp32", "fp32"), ("adamw", "bf16", "bf16"), ("adamw", "int8", "fp32"), ("lion", "fp32", "bf16")],
)
def test_planned_bytes_of_an_update_are_near_the_measured_ones(name, dtype, gradients):
    model = GPT | {"width": 128, "vocab": 1024}
    types = {"param_dtype": "bf16", "grad_dtype": gradients}
    spec = spec_of(model, precision="bf16", optimizer={"name": name, "state_dtype": dtype}, **types)
    with LiveTensorBytes() as meter:
        module = Gpt(spec.model)
        split_parameters(module, gradients)
        optimizer = build_optimizer(spec, module)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter, dtype=torch.float32 if gradients == "fp32" else torch.bfloat16)
        optimizer.step()
        gc.collect()
        meter.reset_peak()
        before = meter.live
        optimizer.step()
        peak = meter.peak - before
    trainable = trainable_model(builtin_models.structure_of(spec.model), spec)
    assert update_bytes(spec, trainable, shards=1) == pytest.approx(peak, rel=0.1)


def test_fewer_stored_values_need_less_memory_and_disk():
    memory, disk = [], []
    for name in ("adamw", "lion", "adafactor"):
        memory.append(estimate(optimizer={"name": name}).memory.parts["optimizer"])
        spec = spec_of(optimizer={"name": name})
        trainable = trainable_model(builtin_models.structure_of(spec.model), spec)
        disk.append(host_and_disk.disk_need(spec, trainable).checkpoint_bytes)
    assert memory[0] == 2 * memory[1] > 50 * memory[2]
    assert disk == sorted(disk, reverse=True)
