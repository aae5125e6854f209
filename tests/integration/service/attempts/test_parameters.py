"""Parameters that a program reports are merged into its job, and job lists can be filtered by them."""

from typing import Any

import pytest

from service.attempts.service import PARAMETERS_DROPPED
from tests.support.world import FakeWorker, World
from trainyard.contract.wire.reports import MAX_PARAMETERS

pytestmark = pytest.mark.databases("sqlite")


def send(worker: FakeWorker, **body: Any) -> int:
    return worker.post("parameters", {"execution": worker.execution, **body}).status_code


def listed(world: World, **query: Any) -> list[str]:
    return [job["id"] for job in world.client.get("/v1/jobs", params=query).json()["data"]]


@pytest.mark.databases("sqlite", "postgres")
def test_reports_are_merged_into_the_job(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert (world.job(job)["parameters"], world.job(job)["tags"]) == ({}, {})
    assert send(worker, parameters={"lr": 0.1, "seed": 3}, tags={"team": "nlp"}) == 200
    assert send(worker, parameters={"lr": 0.2, "on": True, "none": None}, notes="a <b> note") == 200
    resource = world.job(job)
    assert resource["parameters"] == {"lr": 0.2, "seed": 3, "on": True, "none": None}
    assert (resource["tags"], resource["notes"]) == ({"team": "nlp"}, "a <b> note")
    assert send(worker, removed_tags=["team"], notes="") == 200
    assert (world.job(job)["tags"], world.job(job)["notes"]) == ({}, None)


def test_late_report_of_an_older_execution_does_not_replace_newer_values(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.execution = 2
    send(worker, parameters={"lr": 0.2})
    worker.execution = 1
    send(worker, parameters={"lr": 0.1, "seed": 3})
    assert world.job(job)["parameters"] == {"lr": 0.2, "seed": 3}
    assert listed(world, **{"parameters[lr]": "0.1"}) == []


def test_execution_of_another_attempt_is_rejected(world: World) -> None:
    worker = world.start(world.submit())
    worker.execution = 4
    assert send(worker, parameters={"lr": 0.2}) == 409


@pytest.mark.databases("sqlite", "postgres")
def test_jobs_are_filtered_by_value(world: World) -> None:
    jobs = [world.submit() for _ in range(2)]
    for job, lr in zip(jobs, (0.0003, 0.1), strict=True):
        send(world.start(job), parameters={"lr": lr, "optimizer": "adam"})
    assert listed(world, **{"parameters[lr]": "3e-4"}) == [jobs[0]]
    assert listed(world, **{"parameters[lr]": "0.1", "parameters[optimizer]": "adam", "status": "running"}) == [jobs[1]]
    assert listed(world, **{"parameters[lr]": "0.2"}) == listed(world, **{"parameters[other]": "0.1"}) == []
    assert listed(world, **{f"parameters[k{number}]": "x" for number in range(100)}) == []


def test_a_changed_value_is_no_longer_in_the_filter(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    send(worker, parameters={f"p{number}": number for number in range(900)})
    send(worker, parameters={f"p{number}": -number for number in range(900)})
    assert listed(world, **{"parameters[p899]": "899"}) == []
    assert listed(world, **{"parameters[p899]": "-899"}) == [job]


def test_names_beyond_the_limit_give_one_warning(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    send(worker, parameters={f"p{number}": number for number in range(MAX_PARAMETERS)})
    for number in range(3):
        assert send(worker, parameters={f"more{number}": 1}) == 200
    assert len(world.job(job)["parameters"]) == MAX_PARAMETERS
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    assert [event["level"] for event in events if event["type"] == PARAMETERS_DROPPED] == ["warning"]
