"""Values of jobs by which the runs table filters, and what its keys stand for."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.parameters import Reported
from service.jobs.table.keys import ColumnKey, TagKey, ValueRef, resolve_key, unknown_key
from service.jobs.table.values import StoredValue, reported_values, spec_values, stored_value
from service.metrics.summaries import Summary, summaries_of, summarize, summary_values
from trainyard.contract.job_query import Key, QueryError


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (True, StoredValue(None, "true")),
        (3, StoredValue(3.0, None)),
        (math.nan, StoredValue(None, "NaN")),
        (-math.inf, StoredValue(None, "-Infinity")),
        (10**400, StoredValue(None, str(10**400)[:200])),
        ("1e-3", StoredValue(None, "1e-3")),
        ([1, "a"], StoredValue(None, '[1, "a"]')),
        ("x" * 300, StoredValue(None, "x" * 200)),
    ],
)
def test_values_are_a_number_or_a_text(value: Any, stored: StoredValue | None) -> None:
    assert stored_value(value) == stored


def test_parameters_that_are_texts_of_numbers_are_numbers() -> None:
    reported = Reported({"lr": (1, "3e-4"), "name": (1, "a"), "gone": (1, None)}, {"best": (1, "")}, None)
    assert reported_values(reported) == {
        ("parameter", "lr"): StoredValue(3e-4, None),
        ("parameter", "name"): StoredValue(None, "a"),
        ("tag", "best"): StoredValue(None, ""),
    }


def test_fields_of_a_spec_have_dotted_paths_without_empty_ones() -> None:
    spec = {
        "seed": 0,
        "optimizer": {"lr": 0.1, "betas": [0.9], "no_decay": []},
        "ema": None,
        "metadata": {},
        "fp8": False,
    }
    assert spec_values(spec) == {
        ("spec", "seed"): StoredValue(0.0, None),
        ("spec", "optimizer.lr"): StoredValue(0.1, None),
        ("spec", "optimizer.betas"): StoredValue(None, "[0.9]"),
        ("spec", "fp8"): StoredValue(None, "false"),
    }


def test_fields_that_a_task_ignores_have_no_values() -> None:
    fields = {"optimizer": {"lr": 0.1}, "strategy": "auto", "backend": "nccl", "gpus": 2}
    health = {"health": {"on_nan": "fail", "heartbeat": 5}}

    def paths(task: str) -> set[str]:
        return {path for _, path in spec_values({"task": task, **fields, **health})}

    assert paths("script") == {"task", "gpus", "health.heartbeat"}
    assert paths("comm_check") == {"task", "gpus", "backend"}
    assert paths("causal_lm") == {
        "task",
        "gpus",
        "backend",
        "strategy",
        "optimizer.lr",
        "health.on_nan",
        "health.heartbeat",
    }


def test_huge_and_deep_specs_are_bounded() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    wide = {f"k{number}": number for number in range(5000)}
    assert len(spec_values({"environment": {"variables": wide}})) == 2000
    assert all(len(name) <= 512 for _, name in spec_values({"deep": deep}))


def test_keys_are_columns_fields_parameters_or_metrics_in_this_order() -> None:
    numbers = {("spec", "lr"): 1, ("parameter", "lr"): 2, ("metric", "eval/loss"): 3, ("max", "acc"): 4}
    fields = {"optimizer.lr"}

    def resolve(text: str, **more: Any) -> Any:
        return resolve_key(Key(text, **more), numbers, fields)

    assert resolve("status") == ColumnKey("status")
    assert resolve("created_at") == ColumnKey("created")
    assert resolve("tag") == TagKey()
    assert resolve("lr") == ValueRef(("spec", "lr"), 1)
    assert resolve("parameters.lr") == ValueRef(("parameter", "lr"), 2)
    assert resolve("eval/loss") == ValueRef(("metric", "eval/loss"), 3)
    assert resolve("acc", aggregate="best") == ValueRef(("max", "acc"), 4)
    assert resolve("optimizer.lr") == ValueRef(("spec", "optimizer.lr"), None), "no job has it, but a spec can"
    assert resolve("tags.new") == ValueRef(("tag", "new"), None)
    assert resolve("optimiser.lr") is None


def test_unknown_keys_are_met_by_spelling_or_by_their_last_part() -> None:
    known = ["optimizer.lr", "schedule.name", "eval/loss", "train/loss"]
    assert "did you mean `optimizer.lr`" in str(unknown_key(Key("lr", None, 4), known))
    assert "`eval/loss` or `train/loss`" in str(unknown_key(Key("loss"), known))
    error = unknown_key(Key("zzz", None, 4), known)
    assert isinstance(error, QueryError)
    assert str(error) == "no job has `zzz` (column 4)"


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(width=32)), min_size=1, max_size=30, unique_by=lambda one: one[0]),
    st.data(),
)
def test_summaries_do_not_depend_on_how_points_arrive(points: list[tuple[int, float]], data: st.DataObject) -> None:
    points.sort()
    cut = data.draw(st.integers(0, len(points)))
    special = {"nan": 1, "inf": 2, "-inf": 3}

    def rows(some: list[tuple[int, float]]) -> list[Any]:
        return [
            ("m", step, value if math.isfinite(value) else None, special.get(str(value), 0)) for step, value in some
        ]

    once = summarize(rows(points), {})
    stored = summary_values(summarize(rows(points[:cut]), {}))
    again = summarize(rows(points[cut:]), summaries_of(stored))
    assert repr(summary_values(again)) == repr(summary_values(once))
    numbers = [(value, step) for step, value in points if value == value]
    summary = once["m"]
    assert repr(summary.last) == repr(points[-1][1])
    if numbers:
        assert (summary.low, summary.low_step) == min(numbers)
        assert summary.high == max(numbers)[0]
    else:
        assert summary == Summary(summary.last, points[-1][0], was_non_finite=True)
