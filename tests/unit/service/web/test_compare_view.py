"""Runs side by side."""

from service.web.formatting import NOTHING
from service.web.pages.compare_view import cell, compare
from service.web.svg_preview import draw_several
from tests.unit.service.web.test_job_view import job


def test_only_fields_that_differ_are_columns() -> None:
    one = job(id="job_1", spec={"name": "a", "gpus": 2, "optimizer": {"name": "adamw", "lr": 1e-3}})
    other = job(id="job_2", spec={"name": "b", "gpus": 2, "optimizer": {"name": "adamw", "lr": 1e-4}})
    comparison = compare([one, other], None, sweep=None)
    assert comparison.fields == ("optimizer.lr",)
    assert [run.cells for run in comparison.runs] == [("0.001",), ("1e-4",)]


def test_model_metrics_are_listed_before_machine_metrics() -> None:
    runs = [
        job(id="job_1", metrics={"perf/step_seconds": 0.1, "train/loss": 2.0}),
        job(id="job_2", metrics={"own": 1.0}),
    ]
    comparison = compare(runs, None, sweep=None)
    assert comparison.keys == ("own", "train/loss", "perf/step_seconds")
    assert comparison.key == "train/loss"
    assert compare(runs, "own", sweep=None).key == "own"
    assert compare(runs, "no such metric", sweep=None).key == "train/loss"


def test_each_run_can_be_left_out_but_none_of_a_sweep() -> None:
    runs = [job(id="job_1"), job(id="job_2")]
    assert [run.without for run in compare(runs, None, sweep=None).runs] == ["/compare?job=job_2", "/compare?job=job_1"]
    assert {run.without for run in compare(runs, None, sweep="swp_1").runs} == {""}


def test_values_are_written_as_in_a_spec() -> None:
    assert [cell(value) for value in (None, True, "auto", 3, [0.9, 0.95])] == [
        NOTHING,
        "true",
        "auto",
        "3",
        "[0.9, 0.95]",
    ]


def test_curves_of_several_runs_share_their_axes() -> None:
    drawn = draw_several([[(0, 0.0), (10, 1.0)], [(0, 1.0), (5, float("nan")), (10, 0.0)]], title="<loss>")
    assert drawn.count('class="line run-') == 2
    assert "&lt;loss&gt;" in drawn
    assert '<span class="last">10</span>' in drawn
    assert "nan" not in drawn.lower()
    assert draw_several([[(0, 1.0)], []], title="") == ""
