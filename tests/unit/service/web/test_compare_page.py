"""The comparison of runs."""

from typing import Any

from service.web.pages.compare import choose_key, common_metric, comparison, metric_keys
from tests.unit.service.web.test_jobs_page import job


def test_only_differing_fields_are_columns() -> None:
    one = job(id="job_1", spec={"name": "a", "gpus": 2, "optimizer": {"name": "adamw", "lr": 1e-3}})
    other = job(id="job_2", spec={"name": "b", "gpus": 2, "optimizer": {"name": "adamw", "lr": 1e-4}})
    compared = comparison([one, other])
    assert compared["fields"] == ["optimizer.lr"]
    assert [run["values"] for run in compared["runs"]] == [[0.001], [1e-4]]


def test_model_metrics_are_listed_before_machine_metrics() -> None:
    runs = [
        job(id="job_1", metrics={"perf/step_seconds": 0.1, "train/loss": 2.0}),
        job(id="job_2", metrics={"own": 1.0}),
    ]
    keys = metric_keys(runs)
    assert keys == ["own", "train/loss", "perf/step_seconds"]
    assert choose_key(keys, None, "train/loss") == "train/loss"
    assert choose_key(keys, "own", "train/loss") == "own"
    assert choose_key(keys, "no such metric", "train/loss") == "train/loss"
    assert choose_key(["own"], None) == "own"
    assert choose_key([], "own") == ""


def test_metric_that_ranks_all_runs_is_one_that_each_has_reported() -> None:
    accuracy: dict[str, Any] = {"checkpoint": {"keep_best": {"metric": "eval/accuracy", "mode": "max"}}}
    ranked = [job(id=name, spec=accuracy, metrics={"eval/accuracy": 0.5}) for name in ("job_1", "job_2")]
    assert common_metric(ranked) == "eval/accuracy"
    assert common_metric([*ranked, job(id="job_3", spec=accuracy, metrics={})]) is None
    assert common_metric([*ranked, job(id="job_3", spec={}, metrics={"eval/accuracy": 0.5, "eval/loss": 1.0})]) is None
    assert common_metric([job(id="job_4", spec={}, metrics={"eval/loss": 1.0})]) == "eval/loss"
