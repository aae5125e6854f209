"""Advice about running jobs."""

from typing import Any

import pytest

from trainyard.contract.advice import advise

CUSTOM: dict[str, Any] = {"task": "custom", "gpus": 8, "batch": {"loaders": 0}}


def perf(data: Any, step: Any = 1.0) -> dict[str, Any]:
    return {"perf/data_seconds": data, "perf/step_seconds": step}


def test_slow_data_names_its_share_and_the_field() -> None:
    (advice,) = advise(CUSTOM, perf(0.41))
    assert (advice.kind, advice.field) == ("slow_data", "batch.loaders")
    assert advice.message == "The data loader takes 41 % of a step. Raise `batch.loaders`, now 0, to 2."


@pytest.mark.parametrize(
    ("loaders", "end"),
    [
        (1, "now 1, to 2."), (3, "now 3, to 6."), (6, "now 6, to 8."),
        (8, "`batch.loaders` is 8: decode less for each example, or store decoded ones."),
    ],
)  # fmt: skip
def test_more_loaders_are_proposed_up_to_a_number(loaders: int, end: str) -> None:
    (advice,) = advise({**CUSTOM, "batch": {"loaders": loaders}}, perf(0.5))
    assert advice.message.endswith(end)


def test_tasks_in_memory_have_no_loaders_to_raise() -> None:
    (advice,) = advise({"task": "causal_lm", "gpus": 1}, perf(0.3))
    assert advice.field == "profile"


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        perf(0.19),
        perf("NaN"),
        perf(0.5, "Infinity"),
        perf(0.5, 0.0),
        perf(0.5, -1),
        perf(None),
        perf(True),
        perf(7),
    ],
)
def test_no_advice_without_a_large_share(metrics: dict[str, Any]) -> None:
    assert advise(CUSTOM, metrics) == []


def test_idle_gpus_of_all_nodes_are_counted() -> None:
    latest = {"system/node-0/idle_gpus": 2.0, "system/node-1/idle_gpus": 1.0, "system/node-2/idle_gpus": "NaN"}
    (advice,) = advise(CUSTOM, latest)
    assert (advice.kind, advice.field) == ("idle_gpus", "gpus")
    assert advice.message.startswith("3 of 8 GPUs are allocated but idle: below 5 % for 5 min. Lower `gpus`, or find")
    (advice,) = advise({"task": "script", "gpus": 1}, {"system/node-0/idle_gpus": 9.0})
    assert advice.message.startswith("The GPU is allocated but idle")
    assert advise(CUSTOM, {"system/node-0/idle_gpus": 0.0, "mine/idle_gpus": 3.0}) == []


def test_hostile_values_give_no_advice() -> None:
    assert advise({"gpus": "8", "batch": []}, {"system/node-0/idle_gpus": -1e300, **perf([])}) == []
    assert len(advise({"gpus": 8, "task": "custom", "batch": None}, perf(1.0))) == 1
