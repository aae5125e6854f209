"""Parameters by formula and by header, against the modules that the worker builds."""

import pytest

from service.plugins.planner import builtin_models, hf_models
from service.plugins.planner.block_model import edge_units, unit_sizes
from service.plugins.planner.hf_folder import read_folder
from service.plugins.planner.trainable_parameters import TrainableModel, trainable_model
from tests.support.hf import save_llama
from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.problems import Problem
from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.sections import ConvnetModel, Fsdp, MlpModel
from trainyard.contract.spec.training_spec import parse_spec
from worker.engine.strategies.units import ROOT, plan_units
from worker.engine.trainable import freeze_parameters
from worker.tasks.gpt import Gpt
from worker.tasks.image_classification import Convnet
from worker.tasks.llama import Llama
from worker.tasks.regression import mlp

GPT = {"source": "builtin", "name": "gpt", "layers": 3, "width": 24, "heads": 2, "context": 16, "vocab": 260}
LLAMA = {**GPT, "name": "llama", "width": 32, "heads": 4, "key_value_heads": 2}


def spec_of(model=GPT, **changes):
    document = {
        "task": "causal_lm",
        "model": model,
        "data": {"source": "jsonl", "path": "/data/x.jsonl"},
        "steps": 3,
        "strategy": "single",
        "precision": "fp32",
    }
    return parse_spec({**document, **changes})


def shapes(module):
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def messages(structure):
    return {parameter.name: parameter.shape for parameter in structure.parameters}


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_structure_equals_the_module(tied):
    model = GptModel(**{**GPT, "tied": tied})
    assert messages(builtin_models.structure_of(model)) == shapes(Gpt(model))


@pytest.mark.parametrize("tied", [True, False])
def test_llama_structure_equals_the_module(tied):
    model = LlamaModel(**{**LLAMA, "tied": tied})
    assert messages(builtin_models.structure_of(model)) == shapes(Llama(model))


@pytest.mark.parametrize("sizes", [(3, 2), (5, 7, 11, 2)])
def test_mlp_structure_equals_the_module(sizes):
    assert messages(builtin_models.structure_of(MlpModel(sizes=sizes))) == shapes(mlp(sizes, "tanh"))


def test_convnet_structure_equals_the_module():
    model = ConvnetModel(channels=6, classes=11)
    assert messages(builtin_models.structure_of(model)) == shapes(Convnet(6, 11, 0.0))


def test_model_with_too_many_layers_is_not_counted():
    assert builtin_models.structure_of(GptModel(layers=10**12)) is None


@pytest.mark.parametrize("tied", [True, False])
def test_folder_structure_equals_the_module(tmp_path, tied):
    from transformers import AutoModelForCausalLM

    folder = save_llama(tmp_path / "model", tied=tied, layers=11)
    structure = hf_models.structure_of(read_folder(str(folder), AllowedRoots(allowed=(str(tmp_path),))))
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert messages(structure) == shapes(model)
    assert structure.blocks == tuple(f"model.layers.{number}" for number in range(11))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("targets", ["auto", ("q_proj", "*.down_proj")])
def test_folder_adapters_equal_the_module(tmp_path, tied, targets):
    from transformers import AutoModelForCausalLM

    folder = save_llama(tmp_path / "model", tied=tied)
    spec = spec_of({"source": "hf", "path": str(folder)}, lora_rank=4, lora={"targets": targets})
    structure = hf_models.structure_of(read_folder(str(folder), AllowedRoots(allowed=(str(tmp_path),))))
    assert counted(structure, spec) == trained(AutoModelForCausalLM.from_pretrained(folder), spec)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora_rank": 4},
        {"lora_rank": 2, "lora": {"targets": ["qkv", "blocks.1.*"]}},
        {"trainable": ["blocks.2.*", "norm.*"]},
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_trained_parameters_of_gpt_equal_the_module(changes, tied):
    spec = spec_of({**GPT, "tied": tied}, **changes)
    assert counted(builtin_models.structure_of(spec.model), spec) == trained(Gpt(spec.model), spec)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora_rank": 4},
        {"lora_rank": 2, "lora": {"targets": ["q_proj", "model.layers.1.*"]}},
        {"lora_rank": 4, "lora": {"rank_pattern": {"*.1.*.q_proj": 2, "q_proj": 3}, "alpha_pattern": {"v_proj": 2}}},
        {"trainable": ["model.layers.2.*", "lm_head.*"]},
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_trained_parameters_of_llama_equal_the_module(changes, tied):
    spec = spec_of({**LLAMA, "tied": tied}, **changes)
    assert counted(builtin_models.structure_of(spec.model), spec) == trained(Llama(spec.model), spec)


def test_adapters_of_convolutions_and_linear_layers():
    for model, module in (
        (ConvnetModel(channels=6), Convnet(6, 10, 0.0)),
        (MlpModel(sizes=(8, 9, 7, 2)), mlp((8, 9, 7, 2), "relu")),
    ):
        spec = spec_of(lora_rank=3)
        assert counted(builtin_models.structure_of(model), spec) == trained(module, spec)


def test_mismatch_is_a_problem_with_its_field():
    structure = builtin_models.structure_of(GptModel(**GPT))
    cases = {
        "lora_rank": {"lora_rank": 25},
        "lora.targets": {"lora_rank": 2, "lora": {"targets": ["gate"]}},
        "trainable": {"trainable": ["nothing.*"]},
    }
    for param, changes in cases.items():
        result = trainable_model(structure, spec_of(**changes))
        assert isinstance(result, Problem)
        assert result.param == param


@pytest.mark.parametrize(("model", "build"), [(GptModel(**GPT), Gpt), (LlamaModel(**LLAMA), Llama)])
@pytest.mark.parametrize("options", [Fsdp(), Fsdp(wrap="naive"), Fsdp(wrap="size", min_params=1500)])
def test_units_equal_the_engine(options, model, build):
    module = build(model)
    sizes = unit_sizes(builtin_models.structure_of(model), options)
    units = plan_units(module, options)
    for block, size in sizes.items():
        inside = [unit.size for unit in units if unit.module != ROOT and f"{unit.module}.".startswith(f"{block}.")]
        assert size == max(inside, default=0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("options", [Fsdp(), Fsdp(wrap="naive"), Fsdp(wrap="size", min_params=6300)])
def test_units_of_embedding_and_head_equal_the_engine(options, tied):
    model = GptModel(**{**GPT, "vocab": 260, "tied": tied})
    trainable = trainable_model(builtin_models.structure_of(model), spec_of(trainable=["*.bias", "embedding.*"]))
    planned = {unit.module: unit.size for unit in plan_units(Gpt(model), options)}
    expected = [planned.get(name, 0) for name in ("embedding", "head")]
    assert [unit.elements for unit in edge_units(trainable, options)] == expected
    assert [unit.trained for unit in edge_units(trainable, options)] == [expected[0], 0]


def counted(structure, spec):
    result = trainable_model(structure, spec)
    assert isinstance(result, TrainableModel), result
    return result.structure.count, result.trained_count


def trained(module, spec):
    freeze_parameters(spec, module)
    parameters = list(module.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)
