"""A run that no longer improves ends as completed, at the same step however often it is interrupted."""

import json

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, run_layout, spooled
from tests.integration.worker.parity_matrix import VARIANTS, mlp
from trainyard.contract.wire.manifest import Manifest

STOPPING = {"metric": "eval/loss", "patience": 2, "min_delta": 0.02}
SPEC = mlp(
    steps=200,
    data={"source": "builtin", "name": "parity", "examples": 60, "eval_fraction": 0.25},
    early_stopping=STOPPING,
    optimizer={"name": "sgd", "lr": 1.0},
) | {"evaluation": {"every_steps": 4}}


def stopped_after(values, options):
    """Return the step of the evaluation that ends the run, and that of the best one before it."""
    best, best_step, missed = float("inf"), 0, 0
    for step, value in sorted((int(step), float(value)) for step, value in values.items()):
        if best - value > options["min_delta"]:
            best, best_step, missed = value, step, 0
        else:
            missed += 1
        if missed == options["patience"]:
            return step, best_step
    raise AssertionError("every evaluation improves")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopping")
    unlimited = {key: value for key, value in SPEC.items() if key != "early_stopping"} | {"steps": 60}
    alone = run_layout(1, {"whole": {"spec": SPEC, "run": "alone"}, "unlimited": {"spec": unlimited}}, folder / "1")
    last, best = stopped_after(alone[0]["unlimited"]["series"]["eval/loss"], STOPPING)
    layout = SPEC | VARIANTS["layer"]
    # The second part starts in the middle of the patience, and the third after the end.
    cases = {"whole": {"spec": layout, "run": "whole"}}
    cases |= {f"until-{step}": {"spec": layout, "run": "run", "until": step} for step in (last - 2, last + 8)}
    cases["again"] = {"spec": layout, "run": "run"}
    return {1: alone, 2: run_layout(2, cases, folder / "2"), "last": last, "best": best}


def steps(result, case, key="train/loss"):
    return list(map(int, result[0][case]["series"].get(key, {})))


class TestStop:
    def test_run_ends_at_the_evaluation_that_exhausts_the_patience(self, results):
        for world in (1, 2):
            assert steps(results[world], "whole")[-1] == results["last"] < 200
            assert [event["best_step"] for event in results[world][0]["whole"]["stopped_early"]] == [results["best"]]

    def test_resumed_run_ends_at_the_same_step_with_the_same_losses(self, results):
        whole = results[2][0]["whole"]["series"]
        first, rest = (results[2][0][f"until-{results['last'] + ahead}"]["series"] for ahead in (-2, 8))
        for key in ("train/loss", "eval/loss"):
            assert first[key] | rest[key] == whole[key]

    def test_run_that_had_ended_trains_no_further_step(self, results):
        again = results[2][0]["again"]
        assert again["series"] == {}
        assert again["parameters"] == results[2][0]["whole"]["parameters"]


@pytest.mark.heavy
def test_stopped_run_completes_with_checkpoints_and_export(tmp_path):
    overrides = {
        "gpus": 1,
        "strategy": "single",
        "epochs": None,
        "steps": 200,
        "optimizer.lr": 1.0,
        "data": {"source": "builtin", "name": "parity", "examples": 60, "eval_fraction": 0.25},
        "evaluation.every_steps": 4,
        "early_stopping": STOPPING,
        "checkpoint": {"every_steps": 4, "keep_last": 1, "keep_best": {"metric": "eval/loss"}},
    }
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, overrides)
        attempt = run.run()
    record = finish_of(attempt, 1)
    values = spooled(attempt, 1, "eval/loss")
    last, best = stopped_after(values, STOPPING)
    assert (record.reason, record.step, record.best_step) == ("completed", last, best)
    (event,) = service.events_of_type("stopped_early")
    assert (event["data"]["step"], event["data"]["best_step"]) == (last, best)
    remaining = [checkpoint.step for checkpoint in run.layout.complete_checkpoints()]
    lowest = min(values, key=lambda step: float(values[step]))
    assert remaining == sorted({lowest, last})
    manifest = Manifest.model_validate_json(run.layout.checkpoint(last).manifest.read_bytes())
    assert repr(manifest.metrics["eval/loss"]) == values[last]
    assert json.loads((run.layout.export / "export.json").read_text())["step"] == last
