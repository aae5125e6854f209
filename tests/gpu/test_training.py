"""Each strategy and precision on the available GPUs, compared with an fp32 run on one of them."""

import math
from functools import cache

import pytest
import torch

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import ADAMW, SGD, gpt

BASE = gpt(steps=20, batch={"size": 16}, optimizer=SGD | {"clip_norm": 0.5}, precision="fp32", log={"every_steps": 1})
STRATEGIES = {
    "ddp": {"strategy": "ddp"},
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2"},
    "fsdp": {"strategy": "fsdp"},
    "prefetch": {"strategy": "fsdp", "fsdp": {"prefetch": 2}},
    "offload": {"strategy": "fsdp", "fsdp": {"cpu_offload": True}},
}
LOW = {
    f"{name}_{precision}": {**BASE, **STRATEGIES[name], "precision": precision, "optimizer": ADAMW}
    for name in ("ddp", "zero2", "fsdp", "offload")
    for precision in ("bf16", "fp16")
}
CASES = {
    **{name: {"spec": BASE | strategy} for name, strategy in STRATEGIES.items()},
    **{name: {"spec": spec} for name, spec in LOW.items()},
    "adamw": {"spec": {**BASE, "strategy": "ddp", "optimizer": ADAMW}},
    "tf32": {"spec": {**BASE, "strategy": "ddp", "tf32": True}},
    "auto": {"spec": {**BASE, "strategy": "fsdp", "batch": {"size": 16, "micro_size": "auto"}}},
    "reads": {"spec": {**BASE, "strategy": "ddp", "log": {"every_steps": 50}}, "count_reads": True},
    "recomputed": {"spec": {**BASE, "strategy": "ddp", "activation_checkpointing": "full"}},
}
CUDA = {"TRAINYARD_TEST_ACCELERATOR": "cuda"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    worlds = sorted({1, torch.cuda.device_count()})
    return cache(lambda: {n: run_layout(n, CASES, folder / str(n), 600, CUDA) for n in worlds})


def series(results, world, case, key="train/loss"):
    result = results[world][0][case]["series"][key]
    return {int(step): float(value) for step, value in result.items()}


@pytest.mark.parametrize("case", [*STRATEGIES, "recomputed"])
def test_every_strategy_makes_the_same_updates(results, case):
    expected = series(results(), 1, "ddp")
    for world in results():
        got = series(results(), world, case)
        assert len(got) == 20
        assert got == pytest.approx(expected, rel=1e-4), world


@pytest.mark.parametrize("case", LOW)
def test_low_precision_follows_fp32(results, case):
    expected = series(results(), 1, "adamw")
    for world in results():
        assert series(results(), world, case) == pytest.approx(expected, rel=0.03), world


def test_tf32_is_close_to_fp32_and_is_enabled(results):
    exact, rounded = series(results(), 1, "ddp"), series(results(), 1, "tf32")
    assert rounded == pytest.approx(exact, rel=1e-2)
    assert rounded != exact


def test_auto_micro_batch_size_does_not_change_losses(results):
    assert series(results(), 1, "auto") == pytest.approx(series(results(), 1, "fsdp"), rel=1e-4)


def test_memory_is_reported_as_peaks_of_device_and_host(results):
    for case in ("ddp", "fsdp", "offload"):
        peak = series(results(), 1, case, "memory/device_peak_bytes")
        reserved = series(results(), 1, case, "memory/device_reserved_bytes")
        host = series(results(), 1, case, "memory/host_peak_bytes")
        for step in peak:
            assert 0 < peak[step] <= reserved[step]
            assert host[step] > 0


def test_utilisation_is_a_fraction_if_the_peak_is_known(results):
    from worker.engine.flops import peak_flops

    if peak_flops(torch.cuda.get_device_name(), "bf16") is None:
        assert "perf/mfu" not in results()[1][0]["ddp_bf16"]["series"]
    else:
        assert all(0 < value < 1 for value in series(results(), 1, "ddp_bf16", "perf/mfu").values())


def test_step_without_logging_does_not_synchronize(results):
    reads = results()[1][0]["reads"]["reads"]
    assert {step: reads[step] for step in reads if step not in ("1", "20")} == {str(s): 0 for s in range(2, 20)}


@pytest.mark.slow
def test_compiled_blocks_make_the_same_losses(results, tmp_path):
    compiled = {name: {"spec": BASE | STRATEGIES[name] | {"compile": True}} for name in ("ddp", "fsdp")}
    result = run_layout(1, compiled, tmp_path / "compiled", 900, CUDA)
    for name in compiled:
        got = {int(s): float(v) for s, v in result[0][name]["series"]["train/loss"].items()}
        assert got == pytest.approx(series(results(), 1, name), rel=1e-3)


def test_dp_splits_a_batch_over_the_gpus_of_one_process(results, tmp_path):
    count = torch.cuda.device_count()
    program = {"dp": {"spec": {**BASE, "strategy": "dp"}, "gpus": count}}
    result = run_layout(1, program, tmp_path / "dp", 600, CUDA)
    losses = {int(s): float(v) for s, v in result[0]["dp"]["series"]["train/loss"].items()}
    assert losses == pytest.approx(series(results(), 1, "ddp"), rel=1e-4)
    assert all(math.isfinite(value) for value in losses.values())
