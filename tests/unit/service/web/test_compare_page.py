"""The comparison of runs."""

from typing import Any
from urllib.parse import parse_qs

from service.web.pages.compare import choose_key, common_metric, comparison, members_address, metric_keys
from tests.unit.service.web.test_jobs_page import NOW, job
from trainyard.contract.wire.sweeps import SweepDetail


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


def test_table_of_a_sweep_has_its_fields_and_its_metric_once_known() -> None:
    def columns(**changes: Any) -> list[str]:
        fields = ["optimizer.lr", "no.such.field"]
        known = {"id": "swp_1", "name": "a", "created_by": "ada", "created_at": NOW, "fields": fields, "size": 1}
        sweep = SweepDetail.model_validate({**known, "members": [], "metric": "eval/loss", "best": "job_1", **changes})
        parameters = parse_qs(members_address(sweep).partition("?")[2])
        assert parameters["sweep"] == ["swp_1"]
        return parameters.get("columns", [])

    assert columns() == ["status", "name", "optimizer.lr", "progress", "loss", "eval/loss", "age"]
    assert columns(metric="top 1")[-2] == "`top 1`"
    assert columns(metric="train/loss")[-2] == "loss"
    assert columns(best=None) == []
