"""Proposals: the same for the same trials, inside of the ranges, and better than chance."""

from typing import Any

import pytest

from service.plugins.sweeps.search.decide import Trial
from service.plugins.sweeps.search.plan import SearchPlan
from service.plugins.sweeps.search.sampling import importance, propose
from trainyard.contract.wire.search import Search

SPACE = {
    "lr": "log:1e-5:1e-1",
    "optimizer.name": "choice:sgd,adamw",
    "optimizer.momentum": "uniform:0.5:0.99 if optimizer.name=sgd",
    "layers": "int:1:4",
    "widths": {"type": "choice", "values": [[1, 2], [3]]},
}


def plan(algorithm: str, space: dict[str, Any] | None = None, **options: Any) -> SearchPlan:
    search = Search.model_validate({"algorithm": algorithm, "space": space or SPACE, **options})
    return SearchPlan(search=search, metric="eval/loss", mode="min", max_parallel=1)


def history(search: SearchPlan, count: int) -> list[Trial]:
    trials: list[Trial] = []
    for number in range(count):
        values = propose(search, trials)
        states = ["succeeded", "succeeded", "failed", "running"]
        loss = abs(float(values["lr"]) - 0.01)
        trials.append(Trial(number, values, status=states[number % 4], reason="error", value=loss))
    return trials


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_proposals_are_in_their_ranges_and_depend_on_the_trials_alone(algorithm: str) -> None:
    search = plan(algorithm)
    trials = history(search, 24)
    for number, trial in enumerate(trials):
        values = dict(trial.values)
        assert 1e-5 <= float(values["lr"]) <= 1e-1  # type: ignore[arg-type]
        assert ("optimizer.momentum" in values) == (values["optimizer.name"] == "sgd")
        assert values["layers"] in (1, 2, 3, 4)
        assert values["widths"] in ([1, 2], [3])
        assert propose(search, trials[:number]) == values
    assert propose(plan(algorithm, seed=1), trials) != propose(search, trials)


def test_a_grid_has_each_combination_once() -> None:
    search = plan("grid", {"a": "choice:1,2", "b": "choice:x,y", "c": "int:1:3 if b=y"})
    points = [propose(search, [Trial(n, {}) for n in range(number)]) for number in range(search.trials)]
    assert len(points) == 8
    assert len({str(point) for point in points}) == 8


def test_importance_finds_the_field_that_matters() -> None:
    search = plan("random", {"lr": "log:1e-4:1e-1", "other": "uniform:0:1"})
    trials: list[Trial] = []
    for number in range(30):
        values = propose(search, trials)
        trials.append(Trial(number, values, status="succeeded", value=abs(values["lr"] - 0.01)))
    shares = importance(search, trials)
    assert shares["lr"] > 0.7
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)
    assert importance(search, trials[:5]) == {}
