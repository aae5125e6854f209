"""Parameters in bf16 with exact values, and moments in fewer bits: on any layout, resumed, in changed runs."""

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import VARIANTS, gpt

pytestmark = pytest.mark.heavy

STEPS = 8
HALF = {"precision": "bf16", "param_dtype": "bf16", "grad_dtype": "fp32"}
HALF_GRADIENTS = HALF | {"grad_dtype": "bf16"}
ADAMW = {"name": "adamw", "lr": 0.002, "weight_decay": 0.1, "clip_norm": 0.5}
OPTIMIZERS = {
    "adamw": ADAMW,
    "adamw-bf16": ADAMW | {"state_dtype": "bf16"},
    "adamw-int8": ADAMW | {"state_dtype": "int8"},
    "sgd-int8": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "state_dtype": "int8"},
}
LAYOUTS = {
    "ddp": VARIANTS["ddp"] | HALF_GRADIENTS,
    "zero1": VARIANTS["zero1"] | HALF,
    "zero2": VARIANTS["zero2"] | HALF_GRADIENTS,
    "layer": VARIANTS["layer"] | HALF,
}
HSDP = VARIANTS["hsdp"] | HALF
SINGLE = {"strategy": "single"}
SLOW_LAYOUTS = [(3, "ddp"), (3, "layer"), (4, "hsdp")]
EMA = {"decay": 0.75, "every": 2}
PART = ["blocks.0.*"]
LOSS_BOUND, WEIGHT_BOUND = 1e-3, 1e-2
"""Relative differences between layouts: each rank rounds its gradients to bf16."""


SIZE = {"layers": 1, "width": 64, "heads": 2, "context": 16, "vocab": 257}
"""Rows of at least 64 values, whose moments can be in int8."""


def document(optimizer="adamw", **changes):
    model = {"source": "builtin", "name": "gpt", **SIZE}
    spec = gpt(steps=STEPS, model=model, batch={"size": 8, "micro_size": 2}, optimizer=OPTIMIZERS[optimizer])
    return spec | HALF | changes


def in_two_parts(spec, run):
    return {f"{run}/first": {"spec": spec, "run": run, "until": 3}, f"{run}/rest": {"spec": spec, "run": run}}


def cases_on_two():
    cases = {}
    for variant, layout in LAYOUTS.items():
        cases[variant] = {"spec": document() | layout}
    for variant in ("ddp", "layer"):
        spec = document("adamw-int8") | LAYOUTS[variant]
        cases |= {f"{variant}-int8": {"spec": spec}} | in_two_parts(spec, f"{variant}-int8")
    cases["averaged"] = {"spec": document(ema=EMA) | LAYOUTS["layer"]}
    cases["partial"] = {"spec": document(trainable=PART) | LAYOUTS["layer"]}
    cases["moved/first"] = {"spec": document("adamw-int8") | LAYOUTS["layer"], "run": "moved", "until": 3}
    return cases


def changed(name, spec, until):
    return {name: {"spec": spec, "run": "changed", "until": until}}


def cases_on_one():
    cases = {name: {"spec": document(name)} for name in OPTIMIZERS}
    cases["averaged"] = {"spec": document(ema=EMA)}
    cases["partial"] = {"spec": document(trainable=PART)}
    cases["moved/rest"] = {"spec": document("adamw-int8"), "run": "moved"}
    cases |= in_two_parts(document("sgd-int8", ema=EMA), "again")
    plain = {"param_dtype": "fp32", "grad_dtype": "fp32"}
    cases |= changed("fp32 to 4", document(ema=EMA) | plain, 4) | changed("as bf16", document("adamw-int8", ema=EMA), 4)
    cases |= changed("bf16 to 6", document("adamw-int8", ema=EMA), 6)
    cases |= changed("as fp32", document(ema=EMA) | plain, 6) | changed("fp32 to 8", document(ema=EMA) | plain, 8)
    return cases


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dtypes")
    two = run_layout(2, cases_on_two(), folder / "2")
    return {1: run_layout(1, cases_on_one(), folder / "1"), 2: two}


def losses(result, case):
    return {int(step): value for step, value in result[0][case]["series"]["train/loss"].items()}


def numbers(result, case):
    return {step: float(value) for step, value in losses(result, case).items()}


def exported(result, case):
    return torch.cat([torch.tensor(values) for _, values in sorted(result[0][case]["exported"].items())])


def assert_near(one, other, case, reference):
    assert numbers(one, case) == pytest.approx(numbers(other, reference), rel=LOSS_BOUND)
    difference = exported(one, case) - exported(other, reference)
    assert torch.linalg.norm(difference) <= WEIGHT_BOUND * torch.linalg.norm(exported(other, reference))


@pytest.mark.parametrize("variant", LAYOUTS)
def test_losses_and_weights_are_near_those_of_one_process(layouts, variant):
    assert_near(layouts[2], layouts[1], variant, "adamw")


@pytest.mark.parametrize("variant", ["ddp", "layer"])
def test_moments_in_int8_are_near_those_of_one_process(layouts, variant):
    assert_near(layouts[2], layouts[1], f"{variant}-int8", "adamw-int8")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "variant"), SLOW_LAYOUTS)
def test_moments_in_int8_on_more_ranks_are_near_those_of_one(layouts, tmp_path, world, variant):
    spec = document("adamw-int8") | (LAYOUTS | {"hsdp": HSDP})[variant]
    several = run_layout(world, {"several": {"spec": spec}} | in_two_parts(spec, "run"), tmp_path / "ranks")
    assert_near(several, layouts[1], "several", "adamw-int8")
    assert losses(several, "run/first") | losses(several, "run/rest") == losses(several, "several")


@pytest.mark.parametrize("variant", ["ddp", "layer"])
def test_resumed_losses_on_two_ranks_equal_as_text(layouts, variant):
    parts = losses(layouts[2], f"{variant}-int8/first") | losses(layouts[2], f"{variant}-int8/rest")
    assert parts == losses(layouts[2], f"{variant}-int8")


def test_resumed_losses_on_one_rank_equal_as_text(layouts):
    parts = losses(layouts[1], "again/first") | losses(layouts[1], "again/rest")
    assert parts == losses(layouts[1], "sgd-int8")


def test_run_on_two_ranks_goes_on_with_one(layouts):
    parts = numbers(layouts[2], "moved/first") | numbers(layouts[1], "moved/rest")
    assert parts == pytest.approx(numbers(layouts[1], "adamw-int8"), rel=LOSS_BOUND)


def test_model_with_frozen_parameters_is_near_that_of_one_process(layouts):
    assert_near(layouts[2], layouts[1], "partial", "partial")


def test_average_is_near_that_of_one_process(layouts):
    assert_near(layouts[2], layouts[1], "averaged", "averaged")


@pytest.mark.parametrize(("before", "after"), [("fp32 to 4", "as bf16"), ("bf16 to 6", "as fp32")])
def test_change_of_the_parameters_type_changes_no_value(layouts, before, after):
    assert torch.equal(exported(layouts[1], before), exported(layouts[1], after))


def test_run_goes_on_after_each_change(layouts):
    parts = [losses(layouts[1], case) for case in ("fp32 to 4", "bf16 to 6", "fp32 to 8")]
    assert [list(part) for part in parts] == [[1, 2, 3, 4], [5, 6], [7, 8]]
    together = {step: float(loss) for part in parts for step, loss in part.items()}
    assert together == pytest.approx(numbers(layouts[1], "adamw"), rel=LOSS_BOUND)


@pytest.mark.parametrize("name", ["adamw-bf16", "adamw-int8"])
def test_losses_are_near_those_with_moments_in_fp32(layouts, name):
    assert numbers(layouts[1], name) == pytest.approx(numbers(layouts[1], "adamw"), rel=LOSS_BOUND)
