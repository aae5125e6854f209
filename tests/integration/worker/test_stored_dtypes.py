"""Parameters in bf16 with exact values, and moments in fewer bits: on any layout, resumed, in changed runs."""

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import VARIANTS, gpt

STEPS = 12
HALF = {"precision": "bf16", "param_dtype": "bf16", "grad_dtype": "fp32"}
HALF_GRADIENTS = HALF | {"grad_dtype": "bf16"}
ADAMW = {"name": "adamw", "lr": 0.003, "weight_decay": 0.1, "clip_norm": 0.5}
OPTIMIZERS = {
    "adamw": ADAMW,
    "adamw-bf16": ADAMW | {"state_dtype": "bf16"},
    "adamw-int8": ADAMW | {"state_dtype": "int8"},
    "lion-int8": {"name": "lion", "lr": 0.001, "state_dtype": "int8"},
    "sgd-int8": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "state_dtype": "int8"},
}
LAYOUTS = {
    "ddp": VARIANTS["ddp"] | HALF_GRADIENTS,
    "zero1": VARIANTS["zero1"] | HALF,
    "zero2": VARIANTS["zero2"] | HALF_GRADIENTS,
    "layer": VARIANTS["layer"] | HALF,
}
SINGLE = {"strategy": "single"}
EMA = {"decay": 0.75, "every": 2}
LOSS_BOUND, WEIGHT_BOUND = 2e-3, 1e-2
"""Relative differences between layouts: each rank rounds its gradients to bf16."""


def document(optimizer="adamw", **changes):
    return gpt(steps=STEPS, batch={"size": 8, "micro_size": 2}, optimizer=OPTIMIZERS[optimizer]) | HALF | changes


def in_two_parts(spec, run):
    return {f"{run}/first": {"spec": spec, "run": run, "until": 5}, f"{run}/rest": {"spec": spec, "run": run}}


def cases_on_two(texts=None):
    cases = {}
    for variant, layout in LAYOUTS.items():
        cases[variant] = {"spec": document() | layout}
        cases[f"{variant}-int8"] = {"spec": document("adamw-int8") | layout}
        cases |= in_two_parts(document("adamw-int8") | layout, f"again-{variant}")
    cases["averaged"] = {"spec": document(ema=EMA) | LAYOUTS["layer"]}
    return cases


def cases_on_one():
    cases = {name: {"spec": document(name)} for name in OPTIMIZERS}
    cases["half gradients"] = {"spec": document() | HALF_GRADIENTS}
    cases["averaged"] = {"spec": document(ema=EMA)}
    cases |= in_two_parts(document("adamw-bf16", ema=EMA), "again")
    return cases


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dtypes")
    return {1: run_layout(1, cases_on_one(), folder / "1"), 2: run_layout(2, cases_on_two(), folder / "2")}


def losses(result, case):
    return {int(step): value for step, value in result[0][case]["series"]["train/loss"].items()}


def numbers(result, case):
    return {step: float(value) for step, value in losses(result, case).items()}


def exported(result, case):
    return torch.cat([torch.tensor(values) for _, values in sorted(result[0][case]["exported"].items())])


def test_show(layouts):
    one, two = layouts[1], layouts[2]
    for variant in LAYOUTS:
        for suffix in ("", "-int8"):
            a, b = numbers(one, "adamw" + suffix), numbers(two, variant + suffix)
            e, f = exported(one, "adamw" + suffix), exported(two, variant + suffix)
            print(variant, suffix, max(abs(a[s] / b[s] - 1) for s in a), float((e - f).norm() / e.norm()))
        whole = losses(two, f"{variant}-int8")
        parts = losses(two, f"again-{variant}/first") | losses(two, f"again-{variant}/rest")
        print(whole == parts, len(whole))
    for name in cases_on_one():
        print(name, numbers(one, name))
