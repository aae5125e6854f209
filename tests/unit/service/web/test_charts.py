"""Which metrics share a frame."""

from service.web.charts import charts_of


def titles(spec: dict[str, object], keys: list[str]) -> list[str]:
    return [chart.title for chart in charts_of(spec, keys)]


def test_a_training_has_its_frames_before_its_first_point() -> None:
    assert titles({"task": "causal_lm", "gpus": 1}, []) == [
        "Loss", "Learning rate", "Gradient norm", "Throughput", "Memory", "Step time",
    ]  # fmt: skip


def test_throughput_is_in_tokens_where_there_are_any() -> None:
    units = {task: charts_of({"task": task}, [])[3].unit for task in ("causal_lm", "regression")}
    assert units == {"causal_lm": "tokens/s", "regression": "examples/s"}


def test_ranks_have_a_frame_where_there_are_several() -> None:
    assert "Time per rank" in titles({"task": "regression", "gpus": 2}, [])
    assert "Time per rank" not in titles({"task": "regression", "gpus": 65}, [])


def test_every_other_metric_has_a_frame_of_its_own() -> None:
    keys = ["train/loss", "eval/accuracy", "perf/mfu", "perf/rank_spread_seconds", "perf/rank_seconds/0"]
    assert titles({"task": "regression", "gpus": 2}, keys)[-2:] == ["eval/accuracy", "perf/mfu"]


def test_a_script_has_frames_for_what_it_reports_alone() -> None:
    assert titles({"task": "script"}, ["mine", "train/loss"]) == ["Loss", "mine"]
    assert titles({"task": "script"}, []) == []
