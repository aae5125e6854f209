"""Optimizations do not change the losses, and a step without logging does not wait for the device."""

from functools import cache

import pytest

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import ADAMW, SGD, gpt

PLAIN = gpt(steps=12, batch={"size": 7, "micro_size": 2}, optimizer=SGD | {"clip_norm": 0.5}, log={"every_steps": 5})
EVERY = {**PLAIN, "log": {"every_steps": 1}}
DDP = {"strategy": "ddp"}
FSDP = {"strategy": "fsdp"}

CASES = {
    "ddp": {"spec": EVERY | DDP},
    "find_unused_parameters": {"spec": EVERY | DDP | {"ddp": {"find_unused_parameters": True}}},
    "static_graph": {"spec": EVERY | DDP | {"ddp": {"static_graph": True}}},
    "gradient_as_bucket_view": {"spec": EVERY | DDP | {"ddp": {"gradient_as_bucket_view": False}}},
    "small_buckets": {"spec": EVERY | DDP | {"ddp": {"bucket_cap_mb": 1}}},
    "fsdp": {"spec": EVERY | FSDP},
    "prefetch": {"spec": EVERY | FSDP | {"fsdp": {"prefetch": 2}}},
    "reads_ddp": {"spec": PLAIN | DDP, "count_reads": True},
    "reads_fsdp": {"spec": PLAIN | FSDP | {"optimizer": ADAMW}, "count_reads": True},
    "reads_fp16": {"spec": PLAIN | DDP | {"precision": "fp16", "optimizer": ADAMW}, "count_reads": True},
    "reads_skip": {"spec": PLAIN | DDP | {"health": {"on_nan": "skip"}}, "count_reads": True},
    "inf_ddp": {
        "spec": EVERY | DDP | {"precision": "fp16", "amp": {"init_scale": 1024.0}},
        "plant": {"rank": 1, "step": 5, "value": "inf"},
    },
}
COMPILED = {
    name: {"spec": EVERY | strategy | {"compile": True, "activation_checkpointing": "full"}}
    for name, strategy in (("ddp", DDP), ("fsdp", FSDP))
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speed")
    return cache(lambda: run_layout(2, CASES, folder / "2"))


def losses(results, name):
    return results[0][name]["series"]["train/loss"]


class TestOptions:
    @pytest.mark.parametrize(
        ("option", "plain"),
        [
            ("find_unused_parameters", "ddp"),
            ("static_graph", "ddp"),
            ("gradient_as_bucket_view", "ddp"),
            ("small_buckets", "ddp"),
            ("prefetch", "fsdp"),
        ],
    )
    def test_losses_are_unchanged(self, results, option, plain):
        expected, got = losses(results(), plain), losses(results(), option)
        assert len(expected) == 12
        assert {step: float(value) for step, value in got.items()} == pytest.approx(
            {step: float(value) for step, value in expected.items()}, rel=1e-6
        )

    def test_an_infinity_on_one_rank_skips_the_update_on_all(self, results):
        for rank in results():
            assert rank["inf_ddp"]["scales"]["5"] == 512.0
            assert rank["inf_ddp"]["scales"]["4"] == 1024.0
        assert results()[0]["inf_ddp"]["series"]["train/skipped_steps"]["12"] == "1.0"


class TestMemory:
    def test_the_peak_of_host_memory_is_reported_with_the_current_value(self, results):
        series = results()[0]["ddp"]["series"]
        held = {step: float(value) for step, value in series["memory/host_rss_bytes"].items()}
        most = {step: float(value) for step, value in series["memory/host_peak_bytes"].items()}
        assert len(held) == 12
        assert all(most[step] >= held[step] for step in held)
        assert list(most.values()) == sorted(most.values())


class TestStep:
    @pytest.mark.parametrize("case", ["reads_ddp", "reads_fsdp", "reads_fp16"])
    def test_step_does_not_synchronize(self, results, case):
        for rank in results():
            assert rank[case]["reads"] == {str(step): 0 for step in range(1, 13)}

    def test_step_that_may_be_skipped_synchronizes(self, results):
        assert min(results()[0]["reads_skip"]["reads"].values()) >= 1


@pytest.mark.slow
class TestCompiledBlocks:
    def test_losses_equal_those_without_compilation(self, results, tmp_path):
        compiled = run_layout(2, COMPILED, tmp_path / "compiled", seconds=600)
        for name in COMPILED:
            expected, got = losses(results(), name), losses(compiled, name)
            for step, value in expected.items():
                assert float(got[step]) == pytest.approx(float(value), rel=1e-4), (name, step)
