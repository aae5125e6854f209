"""Runs in emulated fp8: close to bf16 on every layout, resumed, exported, and continued from a run in bf16."""

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import ADAMW, VARIANTS, gpt
from trainyard.contract.spec.decoders import GptModel
from worker.export.decoders import gpt2_weights
from worker.tasks.builtin_models import build_builtin

STEPS = 8
SPEC = gpt(
    steps=STEPS, tied=False, batch={"size": 12, "micro_size": 3}, optimizer=ADAMW | {"lr": 0.01, "clip_norm": 0.5}
)
FP8, BF16 = (SPEC | {"precision": precision} for precision in ("fp8", "bf16"))
LAYOUTS = {"ddp": 1e-6, "layer": 0.002}
"""With the largest relative difference of a loss from one rank. `layer` rounds weights to bf16 first."""
HALVES = FP8 | {"param_dtype": "bf16", "grad_dtype": "bf16"}
HALVES_LAYOUTS = {"ddp": 0.01, "zero2": 0.01, "layer": 0.01}
"""The same for parameters in bf16, whose gradients are summed in bf16."""
RECOMPUTED = ("full", "selective")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("float8")


@pytest.fixture(scope="module")
def alone(folder):
    cases = {
        "fp8": {"spec": FP8, "export": str(folder / "export")},
        "bf16": {"spec": BF16},
        "halves": {"spec": HALVES},
        "before": {"spec": BF16, "run": "changed", "until": 3},
        "after": {"spec": FP8, "run": "changed"},
    }
    return run_layout(1, cases, folder / "1")[0]


@pytest.fixture(scope="module")
def on_two(folder):
    cases = {name: {"spec": FP8 | VARIANTS[name]} for name in LAYOUTS}
    cases |= {how: {"spec": FP8 | VARIANTS["layer"] | {"activation_checkpointing": how}} for how in RECOMPUTED}
    cases |= {f"halves {name}": {"spec": HALVES | VARIANTS[name]} for name in HALVES_LAYOUTS}
    halves = {"spec": HALVES | VARIANTS["layer"], "run": "halves"}
    cases |= {"first halves": halves | {"until": 5}, "rest of halves": halves}
    parts = {"spec": FP8 | VARIANTS["layer"], "run": "parts"}
    return run_layout(2, cases | {"first": parts | {"until": 5}, "rest": parts}, folder / "2")[0]


def losses(result, case):
    return {int(step): float(value) for step, value in result[case]["series"]["train/loss"].items()}


def test_losses_are_close_to_those_of_bf16_and_not_equal(alone):
    assert losses(alone, "fp8") == pytest.approx(losses(alone, "bf16"), rel=0.01)
    assert losses(alone, "fp8") != losses(alone, "bf16")


@pytest.mark.parametrize("variant", LAYOUTS)
def test_losses_on_two_ranks_are_close_to_those_of_one(alone, on_two, variant):
    assert losses(on_two, variant) == pytest.approx(losses(alone, "fp8"), rel=LAYOUTS[variant])


def test_parameters_in_bf16_change_the_losses_little(alone):
    assert losses(alone, "halves") == pytest.approx(losses(alone, "fp8"), rel=0.01)
    assert losses(alone, "halves") != losses(alone, "fp8")


@pytest.mark.parametrize("variant", HALVES_LAYOUTS)
def test_losses_with_parameters_in_bf16_on_two_ranks(alone, on_two, variant):
    assert losses(on_two, f"halves {variant}") == pytest.approx(losses(alone, "halves"), rel=HALVES_LAYOUTS[variant])


def test_resumed_run_with_parameters_in_bf16_has_identical_losses(on_two):
    parts = on_two["first halves"]["series"]["train/loss"] | on_two["rest of halves"]["series"]["train/loss"]
    assert parts == on_two["halves layer"]["series"]["train/loss"]


@pytest.mark.parametrize("how", RECOMPUTED)
def test_recomputed_activations_give_identical_losses(on_two, how):
    assert on_two[how]["series"]["train/loss"] == on_two["layer"]["series"]["train/loss"]


def test_resumed_run_has_identical_losses(on_two):
    parts = on_two["first"]["series"]["train/loss"] | on_two["rest"]["series"]["train/loss"]
    assert parts == on_two["layer"]["series"]["train/loss"]


def test_run_in_bf16_is_continued_in_fp8(alone):
    after = losses(alone, "after")
    assert list(after) == list(range(4, STEPS + 1))
    assert after == pytest.approx({step: losses(alone, "bf16")[step] for step in after}, rel=0.01)


def test_export_has_the_weights_in_fp32(alone, folder):
    exported = load_file(folder / "export" / "model.safetensors")
    model = GptModel.model_validate(SPEC["model"])
    shapes = {name: parameter.shape for name, parameter in build_builtin(model).named_parameters()}
    trained = {name: torch.tensor(alone["fp8"]["parameters"][name]).view(shape) for name, shape in shapes.items()}
    expected = gpt2_weights(trained, model)
    assert exported.keys() == expected.keys()
    for name, tensor in exported.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name
