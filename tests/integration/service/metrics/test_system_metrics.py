"""Metrics of nodes beside those of the training: curves, but no results of the job."""

from typing import Any

import pytest

from service.metrics.ingest import writer
from tests.support.world import World
from trainyard.contract.wire.reports import UNKNOWN_STEP

pytestmark = pytest.mark.databases("sqlite", "postgres")

CPU = "system/node-0/cpu_percent"


@pytest.fixture
def job(world: World) -> str:
    """A job that resumed from step 4, and whose node has reported before and after."""
    job = world.submit()
    worker = world.start(job)
    system(worker, [(CPU, 0, 50.0), ("system/node-0/idle_gpus", 0, 1.0)])
    worker.metrics([("train/loss", 5, 1.0)], resumed=4)
    system(worker, [(CPU, 9, 60.0), ("system/node-0/idle_gpus", 9, 1.0)])
    return job


def system(worker: Any, points: list[tuple[str, int, float]]) -> None:
    worker.metrics(points, resumed=UNKNOWN_STEP)


def test_readings_are_curves_and_hide_no_point(world: World, job: str) -> None:
    (of_program,) = world.client.get(f"/v1/jobs/{job}/metrics").json()["series"]
    assert of_program["key"] == "train/loss"
    csv = world.client.get(f"/v1/jobs/{job}/metrics", params={"format": "csv"}).text
    assert "train/loss" in csv
    assert "system/" not in csv
    answer = world.client.get(f"/v1/jobs/{job}/metrics", params={"system": "true"}).json()
    answered = {one["key"]: (one["steps"], one["values"]) for one in answer["series"]}
    assert answered[CPU] == ([0, 9], [50.0, 60.0])
    assert answered["train/loss"] == ([5], [1.0])
    assert answer["series"][0]["key"] == "train/loss"
    assert world.job(job)["attempt"]["resumed_from_step"] == 4


def test_readings_are_no_results_but_give_advice(world: World, job: str) -> None:
    answered = world.job(job)
    assert answered["metrics"] == {"train/loss": 1.0}
    assert answered["metrics_omitted"] == 0
    assert [one["kind"] for one in answered["advice"]] == ["idle_gpus"]
    (listed,) = world.client.get("/v1/jobs").json()["data"]
    assert (listed["metrics"], listed["advice"]) == ({"train/loss": 1.0}, [])


def test_names_of_the_system_take_none_of_the_program(world: World, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_KEYS", 4)
    monkeypatch.setattr(writer, "MAX_SYSTEM_KEYS", 2)
    worker = world.worker(job)
    worker.execution = 1
    assert worker.metrics([("mine", 6, 1.0)], resumed=4).status_code < 300
    system_names = [(f"system/node-{node}/cpu_percent", 10, 1.0) for node in (1, 2)]
    assert worker.metrics(system_names, resumed=UNKNOWN_STEP).status_code < 300
    assert worker.metrics([("system/node-3/cpu_percent", 10, 1.0)], resumed=UNKNOWN_STEP).status_code == 422
