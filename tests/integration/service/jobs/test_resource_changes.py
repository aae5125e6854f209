"""`retry` and `resume` with other resources."""

from typing import Any

import pytest

from service.scheduler.base import Postponed, Rejected
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def change(world: World, job: str, verb: str, minutes: int | None) -> Any:
    return world.client.post(f"/v1/jobs/{job}/{verb}", json={"resources": {"time_limit_minutes": minutes}})


def changes_of(world: World, job: str) -> list[str]:
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    return [event["message"] for event in events if event["type"] == "resources_changed"]


@pytest.mark.databases("postgres")
def test_a_failed_job_continues_with_other_resources(world: World) -> None:
    job = world.submit(restart={"max_retries": 0}, resources={"time_limit_minutes": 5})
    world.scheduler.outcome = Rejected("Batch job submission failed: Requested time limit is invalid")
    world.tick(2)
    assert world.status(job) == "failed"
    world.scheduler.outcome = None
    answer = change(world, job, "retry", 30)
    assert answer.status_code == 202, answer.text
    world.tick()
    assert world.scheduler.submitted[-1].time_limit_minutes == 30
    assert world.job(job)["spec"]["resources"]["time_limit_minutes"] == 30
    assert changes_of(world, job) == ["Resources changed by admin: time_limit_minutes: 5 -> 30"]
    listed = world.client.get("/v1/jobs", params={"where": "resources.time_limit_minutes = 30"}).json()["data"]
    assert [each["id"] for each in listed] == [job]


def test_a_paused_job_resumes_with_the_default(world: World) -> None:
    job = world.submit(resources={"time_limit_minutes": 5})
    world.client.post(f"/v1/jobs/{job}/pause")
    world.tick()
    assert change(world, job, "resume", None).status_code == 202
    world.tick(2)
    assert world.scheduler.submitted[-1].time_limit_minutes is None
    assert changes_of(world, job) == ["Resources changed by admin: time_limit_minutes: 5 -> default"]


def test_a_job_that_the_scheduler_refuses_for_now_is_submitted_anew(world: World) -> None:
    job = world.submit(resources={"time_limit_minutes": 5})
    world.scheduler.outcome = Postponed("Batch job submission failed: Requested partition is down")
    world.tick(2)
    assert (world.status(job), world.job(job)["condition"]["code"]) == ("submitting", "refused_for_now")
    world.scheduler.outcome = None
    world.tick()
    assert world.scheduler.submitted == [], "the back-off"
    assert change(world, job, "retry", 30).status_code == 202
    world.tick()
    assert [plan.time_limit_minutes for plan in world.scheduler.submitted] == [30]
    attempts = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    assert [each["exit_reason"] for each in attempts] == ["paused", None]


@pytest.mark.parametrize(("verb", "body"), [("retry", {"from": "scratch"}), ("resume", {})])
def test_only_a_retry_from_the_checkpoint_submits_a_waiting_job_anew(world: World, verb: str, body: Any) -> None:
    job = world.submit()
    world.scheduler.outcome = Postponed("Batch job submission failed: Requested partition is down")
    world.tick(2)
    answer = world.client.post(f"/v1/jobs/{job}/{verb}", json={**body, "resources": {"time_limit_minutes": 30}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_active")
    assert changes_of(world, job) == []


def test_a_job_that_the_scheduler_has_keeps_its_resources(world: World) -> None:
    job = world.submit()
    world.tick()
    for verb in ("retry", "resume"):
        answer = change(world, job, verb, 30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_active")
        assert "pause it" in answer.json()["error"]["message"]
    assert world.job(job)["spec"]["resources"].get("time_limit_minutes") is None


def test_a_refused_change_names_what_to_wait_for(world: World) -> None:
    job = world.submit()
    world.tick()
    assert world.client.post(f"/v1/jobs/{job}/pause").status_code == 202
    world.tick()
    message = change(world, job, "resume", 30).json()["error"]["message"]
    assert message.endswith("has status pausing; change its resources when it is paused")


def test_resources_are_checked_like_those_of_a_new_job(world: World) -> None:
    job = world.submit()
    world.client.post(f"/v1/jobs/{job}/pause")
    world.tick()
    for resources, param in (
        ({"time_limit_minutes": 0}, "resources.time_limit_minutes"),
        ({"gpu": 1}, "resources.gpu"),
    ):
        answer = world.client.post(f"/v1/jobs/{job}/resume", json={"resources": resources})
        assert answer.status_code == 422, answer.text
        assert [problem["param"] for problem in answer.json()["problems"]] == [param]
    assert world.status(job) == "paused"
    assert changes_of(world, job) == []
