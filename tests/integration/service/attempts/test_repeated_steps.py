"""Steps that a program logs again and curves that begin again, from the worker's reports to the job's history."""

import json
from typing import Any

import pytest

from tests.support.world import FakeWorker, World
from trainyard.contract.wire.reports import MetricsBatch
from trainyard.contract.wire.spool import format_record

pytestmark = pytest.mark.databases("sqlite")

TIME = "2026-01-01T00:00:00Z"


def body(values: list[tuple[str, int, float]], **others: Any) -> dict[str, Any]:
    points = [{"key": key, "step": step, "value": value, "time": TIME} for key, step, value in values]
    return {"execution": 1, "resumed_from_step": 0, "points": points, **others}


def send(worker: FakeWorker, record: int, values: list[tuple[str, int, float]], **others: Any) -> dict[str, Any]:
    source = {"spool": 1, "records": [[record, len(values)]]}
    answer = worker.post("metrics", body(values, source=source, **others))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def curves(world: World, job: str) -> dict[str, list[tuple[int, float]]]:
    answer = world.client.get(f"/v1/jobs/{job}/metrics").json()
    return {one["key"]: list(zip(one["steps"], one["values"], strict=True)) for one in answer["series"]}


def events(world: World, job: str, kind: str) -> list[dict[str, Any]]:
    data = world.client.get(f"/v1/jobs/{job}/events", params={"limit": 100}).json()["data"]
    return [event for event in data if event["type"] == kind]


def test_the_end_of_an_execution_states_its_repeated_steps(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    for fold in range(3):
        send(worker, fold, [("loss", step, fold / 4) for step in range(2)] + [("acc", 0, fold)])
    assert send(worker, 2, [("loss", 0, 0.5)]) == {"accepted": 0, "duplicates": 1}
    folder = world.folder(job)
    records = [
        format_record(3, "metrics", MetricsBatch.model_validate(body([("loss", 0, 9.0)]))),
        format_record(1, "metrics", MetricsBatch.model_validate(body([("loss", 1, 0.25)]))),
    ]
    folder.tracker_spool(1, 0).write_bytes(b"".join(records))
    worker.end("completed")
    world.tick()
    assert curves(world, job) == {"loss": [(0, 9.0), (1, 0.5)], "acc": [(0, 2.0)]}
    (event,) = events(world, job, "steps_repeated")
    assert (event["level"], event["message"]) == (
        "info",
        "7 repeated steps of 2 metrics, such as loss, acc; the last values are kept",
    )
    repeats = [{"metric": "loss", "count": 5}, {"metric": "acc", "count": 2}]
    assert event["data"] == {"execution": 1, "metrics": 2, "repeats": repeats}


def test_a_job_without_repeated_steps_has_no_event(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    for _ in range(2):
        send(worker, 0, [("loss", 0, 1.0)])
    worker.end("completed")
    world.tick()
    assert events(world, job, "steps_repeated") == []


def test_a_curve_that_begins_again_replaces_the_old_one_everywhere(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    send(worker, 0, [("loss", 100, 9.0), ("loss", 200, -9.0), ("acc", 1, 0.1)])
    send(worker, 2, [("loss", 1, 0.5)], restarts=["loss"])
    assert send(worker, 1, [("loss", 300, 1.0), ("acc", 2, 0.2)]) == {"accepted": 1, "duplicates": 1}
    assert curves(world, job) == {"loss": [(1, 0.5)], "acc": [(1, 0.1), (2, 0.2)]}
    assert world.client.get(f"/v1/jobs/{job}").json()["metrics"] == {"loss": 0.5, "acc": 0.2}
    (event,) = events(world, job, "curves_restarted")
    assert event["message"] == "The program begins the curve of loss again"
    assert event["data"] == {"metrics": ["loss"], "count": 1}
    worker.end("completed")
    world.tick()
    text = world.client.get(f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": "0"}).text
    received = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    restarted = next(i for i, one in enumerate(received) if one.get("type") == "curves_restarted")
    logged = next(i for i, one in enumerate(received) if any(p["key"] == "loss" for p in one.get("points", ())))
    assert restarted < logged, "a reader forgets the curve before it gets the new points"


def test_a_restart_without_a_record_is_refused(world: World) -> None:
    worker = world.start(world.submit())
    answer = worker.post("metrics", body([("loss", 1, 1.0)], restarts=["loss"]))
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "source")
    answer = worker.post("metrics", body([("loss", 1, 1.0)], source={"records": [[1, 2]]}))
    assert answer.status_code == 422
    assert "counts 2 points; the batch has 1" in answer.text
