"""Two ranks that read what they exchange one step later report, save and stop as those that wait for each other."""

import json

import pytest

from tests.integration.worker.harness import run_layout
from tests.integration.worker.parity_matrix import mlp
from trainyard.contract.layout import RunLayout

SPEC = mlp(
    steps=40,
    data={"source": "builtin", "name": "parity", "examples": 60, "eval_fraction": 0.25},
    log={"every_steps": 3},
    optimizer={"name": "adamw", "lr": 0.01, "clip_norm": 1.0},
) | {"strategy": "ddp", "evaluation": {"every_steps": 8}, "checkpoint": {"every_steps": 5, "keep_last": 20}}
EVERY = SPEC | {"log": {"every_steps": 1}}
SHORT_STEPS, LONG_STEPS = 1e9, 0.0
"""Periods for which every step counts as short or as long."""

CASES = {
    "late": {"spec": SPEC, "period_seconds": SHORT_STEPS, "run": "late"},
    "at_once": {"spec": SPEC, "period_seconds": LONG_STEPS, "run": "at_once"},
    "every_late": {"spec": EVERY, "period_seconds": SHORT_STEPS},
    "every_at_once": {"spec": EVERY, "period_seconds": LONG_STEPS},
    "hook": {"spec": EVERY, "sums": True},
    "bad_late": {"spec": SPEC, "period_seconds": SHORT_STEPS, "plant": {"rank": 1, "step": 17, "value": "nan"}},
    "stop_0": {"spec": EVERY, "period_seconds": SHORT_STEPS, "run": "stop_0", "stop": {"rank": 0, "step": 7}},
    "stop_1": {"spec": SPEC, "period_seconds": SHORT_STEPS, "run": "stop_1", "stop": {"rank": 1, "step": 13}},
    "stop_long": {"spec": EVERY, "run": "stop_long", "period_seconds": LONG_STEPS, "stop": {"rank": 1, "step": 9}},
    "resumed_0": {"spec": EVERY, "period_seconds": SHORT_STEPS, "run": "stop_0"},
    "resumed_1": {"spec": SPEC, "period_seconds": SHORT_STEPS, "run": "stop_1"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("exchange")


@pytest.fixture(scope="module")
def results(folder):
    return run_layout(2, CASES, folder / "2")


def exact(result, case):
    """Return the metrics that do not measure time or memory, by name and step, in the order of the reports."""
    series = result[0][case]["series"]
    return {name: list(points.items()) for name, points in series.items() if name.startswith(("train/", "eval/"))}


def steps(result, case):
    return list(map(int, result[0][case]["series"]["train/loss"]))


class TestPoints:
    @pytest.mark.parametrize(("late", "at_once"), [("late", "at_once"), ("every_late", "every_at_once")])
    def test_late_points_equal_those_read_at_once(self, results, late, at_once):
        assert exact(results, late) == exact(results, at_once)

    def test_every_logged_step_is_reported_once_and_in_order(self, results):
        assert steps(results, "late") == [1, *range(3, 40, 3), 40]
        assert steps(results, "every_late") == list(range(1, 41))

    def test_checkpoints_record_the_loss_of_their_own_step(self, results, folder):
        losses = results[0]["late"]["series"]["train/loss"]
        for step in range(5, 41, 5):
            manifest = json.loads(RunLayout(folder / "late").checkpoint(step).manifest.read_text())
            expected = {"train/loss": float(losses[str(step)])} if str(step) in losses else {}
            assert {key: value for key, value in manifest["metrics"].items() if key == "train/loss"} == expected

    def test_a_bad_loss_ends_all_ranks_after_its_step_is_logged(self, results):
        for rank in results:
            assert rank["bad_late"]["error"] == "the loss became NaN or infinite at step 17"
            assert max(map(int, rank["bad_late"]["examples"])) == 19
        assert steps(results, "bad_late")[-1] == 18


class TestStop:
    @pytest.mark.parametrize(
        ("case", "requested", "latest"), [("stop_0", 7, 8), ("stop_1", 13, 16), ("stop_long", 9, 9)]
    )
    def test_ranks_stop_after_the_same_step(self, results, case, requested, latest):
        last = {max(map(int, rank[case]["examples"])) for rank in results}
        assert len(last) == 1
        assert requested <= last.pop() <= latest

    def test_points_are_complete_at_the_stop_and_after_the_resume(self, results):
        for part, rest, whole in (("stop_0", "resumed_0", "every_late"), ("stop_1", "resumed_1", "late")):
            before, after, all_ = (results[0][case]["series"]["train/loss"] for case in (part, rest, whole))
            assert before | after == all_
            assert max(map(int, before)) < min(map(int, after))


def test_the_average_of_a_scaled_loss_is_the_sum_to_the_last_digit(results):
    assert exact(results, "hook") == exact(results, "every_at_once")
