"""Traces of a running job: requested, sent with the heartbeat, and confirmed when written."""

from typing import Any

import pytest

from tests.support.world import FakeWorker, World

pytestmark = pytest.mark.databases("sqlite")


def ask(world: World, job: str, **body: Any) -> Any:
    return world.client.post(f"/v1/jobs/{job}/profile", json=body)


def requested_profile(worker: FakeWorker) -> Any:
    return worker.post("heartbeat", {"execution": worker.execution}).json()["profile"]


@pytest.mark.parametrize("answer_type", ["profile_written", "profile_dropped"])
def test_heartbeat_repeats_the_request_until_it_is_answered(world: World, answer_type: str) -> None:
    job = world.submit()
    worker = world.start(job)
    assert requested_profile(worker) is None
    answer = ask(world, job, steps=2, ranks=[1])
    assert (answer.status_code, answer.json()["id"]) == (202, job)
    request = requested_profile(worker)
    assert (request["steps"], request["ranks"]) == (2, [1])
    assert requested_profile(worker) == request
    event = {"sequence": 0, "type": answer_type, "message": "x", "data": {"request": request["request"]}}
    body = {"execution": 1, "events": [{**event, "time": world.clock().isoformat()}]}
    assert worker.post("events", body).status_code == 200
    assert requested_profile(worker) is None
    assert ask(world, job, steps=2, ranks=[1]).status_code == 202
    assert requested_profile(worker)["request"] > request["request"]


@pytest.mark.databases("sqlite", "postgres")
def test_repeated_profile_request_changes_nothing(world: World) -> None:
    job = world.submit()
    world.start(job)
    for _ in range(2):
        assert ask(world, job).status_code == 202
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    assert [event["type"] for event in events].count("profile_requested") == 1


def test_only_a_running_job_can_be_traced(world: World) -> None:
    answer = ask(world, world.submit())
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_running")
    assert "has status queued" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"), [({"ranks": [2]}, "ranks"), ({"steps": 0}, "steps"), ({"ranks": []}, "ranks"), ({"x": 1}, "x")]
)
def test_untraceable_task_or_rank_is_rejected_by_name(world: World, body: dict[str, Any], param: str) -> None:
    job = world.submit()
    worker = world.start(job)
    answer = ask(world, job, **body)
    assert (answer.status_code // 100, answer.json()["error"]["param"]) == (4, param)
    assert requested_profile(worker) is None


def test_viewer_cannot_request_a_profile(world: World) -> None:
    job = world.submit()
    world.start(job)
    assert world.new_user("viewer", "v").post(f"/v1/jobs/{job}/profile", json={}).status_code == 403
