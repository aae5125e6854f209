"""An attempt's token ends with its attempt: later reports are refused and audited."""

from typing import Any

import pytest

from tests.support.world import SPEC, FakeWorker, World

pytestmark = pytest.mark.databases("sqlite")

TIME = "2026-01-01T00:00:00Z"


def late_reports(worker: FakeWorker) -> dict[str, Any]:
    """Send every kind of report and return the responses by route."""
    event = {"sequence": 1, "type": "note", "message": "x", "time": TIME}
    progress = {"step": 5, "total_steps": 10}
    return {
        "metrics": worker.metrics([("train/loss", 99, -1.0)], progress=progress),
        "new metrics": worker.metrics([("another", 99, -1.0)]),
        "events": worker.post("events", {"execution": 1, "events": [event]}),
        "checkpoints": worker.checkpoint(1_000_000),
        "logs": worker.log("0", 0, b"x"),
        "finish": worker.finish("error"),
    }


@pytest.mark.parametrize("reason", ["completed", "error", "preempted", "user_cancelled"])
def test_report_of_an_ended_attempt_is_refused_and_audited(world: World, reason: str) -> None:
    job = world.submit(restart={"max_retries": 1})
    worker = world.start(job)
    worker.metrics([("train/loss", 1, 0.5)], progress={"step": 20, "total_steps": 20})
    worker.checkpoint(20)
    worker.end(reason)
    world.tick()
    before = world.job(job), world.client.get(f"/v1/jobs/{job}/checkpoints").json()
    for route, answer in late_reports(worker).items():
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "attempt_ended"), route
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "cancel", "a worker that still runs is stopped"
    assert worker.claim().status_code == 409
    assert (world.job(job), world.client.get(f"/v1/jobs/{job}/checkpoints").json()) == before
    audit = world.client.get("/v1/audit?outcome=refused").json()["data"]
    reports = {"report_metrics", "report_events", "report_checkpoint", "append_log", "finish_attempt"}
    assert reports <= {entry["action"] for entry in audit}
    assert all(entry["status"] == 403 for entry in audit)


def test_checkpoint_of_an_ended_attempt_is_not_resumed_from(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(10)
    worker.end("completed")
    world.tick()
    worker.checkpoint(1_000_000)
    assert world.job(job)["last_checkpoint_step"] == 10
    answer = world.client.post("/v1/jobs", json={**SPEC, "resume_from": f"{job}:1000000"})
    assert answer.status_code in (404, 409, 422), answer.text


def test_attempt_that_is_only_lost_may_still_report(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.scheduler.states.clear()
    world.clock.advance(3600)
    world.tick()
    assert world.status(job) == "lost"
    assert worker.metrics([("a", 1, 1.0)]).status_code == 200
    assert worker.checkpoint(3).status_code == 200
