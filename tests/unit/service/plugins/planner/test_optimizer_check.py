"""Optimizer fields that match no parameter of a builtin model are refused at submission."""

import pytest

from service.plugins.planner.trainable_parameters import trainable_problem
from tests.unit.service.plugins.planner.test_model_structure import GPT, LLAMA, spec_of

DECAY = {"weight_decay": 0.1}


def problem_of(model=LLAMA, **changes):
    problem = trainable_problem(spec_of(model, **changes))
    return None if problem is None else str(problem)


def test_rate_of_unknown_parameters_is_refused():
    message = problem_of(optimizer={"lr_scale": {"*embed*": 2, "*nothing*": 0.5}})
    start = "optimizer.lr_scale: `*nothing*` matches no trained parameter of the model; the closest: model."
    assert message.startswith(start)


def test_rate_of_adapters_needs_a_rank():
    scaled = {"lr_scale": {"*lora_B*": 16}}
    assert problem_of(optimizer=scaled) == (
        "optimizer.lr_scale: `*lora_B*` matches no trained parameter of the model; set `lora_rank` for adapters"
    )
    assert problem_of(optimizer=scaled, lora_rank=4) is None
    assert "`*norm*` matches" in problem_of(optimizer={"lr_scale": {"*norm*": 2}}, lora_rank=4)


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
def test_pattern_without_an_adapted_layer_is_refused(field):
    lora = {"targets": ["q_proj", "k_proj"], field: {"q_proj": 2, "v_proj": 3}}
    message = f"lora.{field}: `v_proj` matches no layer that is adapted; there are: q_proj, k_proj"
    assert problem_of(lora_rank=4, lora=lora) == message


def test_rank_of_a_layer_is_limited_by_its_smallest_side():
    message = problem_of(lora_rank=4, lora={"rank_pattern": {"down_proj": 100_000}})
    assert message.startswith(
        "lora.rank_pattern: is 100000, larger than the smallest side of its target `model.layers.0."
    )


def test_rate_of_a_frozen_parameter_is_refused():
    scaled = {"lr_scale": {"*embed*": 2}}
    assert problem_of(optimizer=scaled) is None
    assert "optimizer.lr_scale: `*embed*` matches" in problem_of(optimizer=scaled, trainable=["*norm*"])


def test_muon_without_hidden_matrices_is_refused():
    muon = {"name": "muon"}
    refusal = "optimizer.name: `muon` is for matrices of hidden layers, and none is trained; use `adamw`"
    assert problem_of(optimizer=muon, trainable=["*norm*"]) == refusal
    assert problem_of(optimizer=muon, trainable=["*norm*", "*q_proj*"]) is None
    assert problem_of(optimizer=muon) is None
    assert problem_of(optimizer=muon, lora_rank=4) is None
    perceptron = {"source": "builtin", "name": "mlp", "sizes": [2, 3]}
    parity = {"source": "builtin", "name": "parity"}
    assert problem_of(perceptron, task="regression", data=parity, optimizer=muon) == refusal


@pytest.mark.parametrize(
    ("model", "changes", "kinds", "refused"),
    [
        (LLAMA, {}, ["biases"], "biases"),
        (LLAMA, {}, ["norms", "biases"], "biases"),
        (LLAMA, {}, ["norms", "embeddings"], None),
        (GPT, {}, ["norms", "biases", "embeddings"], None),
        (GPT, {"trainable": ["blocks.*"]}, ["embeddings"], "embeddings"),
        (GPT, {"lora_rank": 4}, ["norms"], "norms"),
    ],
)
def test_decay_without_such_parameters_is_refused(model, changes, kinds, refused):
    message = problem_of(model, optimizer={**DECAY, "no_decay": kinds}, **changes)
    expected = f"optimizer.no_decay: has no effect for `{refused}`: the run trains no such parameter; remove it"
    assert message == (None if refused is None else expected)
