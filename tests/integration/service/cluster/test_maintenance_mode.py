"""Maintenance mode: jobs are accepted and wait, nothing is submitted, and running jobs continue."""

import pytest

from service.reconciler.submission.pool import SubmitPool
from service.scheduler.base import Ambiguous
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

ON = {"active": True, "message": "Slurm upgrade until 14:00"}
MESSAGE = (
    "Waiting for the end of maintenance mode, on since 2026-01-01 00:00 UTC (Slurm upgrade until 14:00). "
    "The job is submitted then."
)


def switch(world: World, body: dict[str, object]) -> dict[str, object]:
    answer = world.client.put("/v1/maintenance", json=body)
    assert answer.status_code == 200, answer.text
    state: dict[str, object] = answer.json()
    return state


def test_jobs_wait_until_it_ends(world: World) -> None:
    switch(world, ON)
    jobs = [world.submit() for _ in range(2)]
    world.tick(3)
    assert [(world.status(job), world.job(job)["status_message"]) for job in jobs] == [("queued", MESSAGE)] * 2
    assert world.scheduler.submitted == []
    assert world.client.get("/readyz").status_code == 200
    switch(world, {"active": False})
    world.tick()
    assert [world.status(job) for job in jobs] == ["pending", "pending"]


def test_running_jobs_continue_and_their_next_attempts_wait(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    switch(world, ON)
    world.tick()
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] is None
    assert world.status(job) == "running"
    worker.end("preempted")
    world.tick(2)
    assert (world.status(job), world.job(job)["status_message"]) == ("queued", MESSAGE)
    assert len(world.scheduler.submitted) == 1


def test_an_unconfirmed_submission_is_not_repeated(world: World) -> None:
    world.scheduler.name = "slurm"
    world.reconciler = world.new_reconciler("one")
    job = world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    world.scheduler.outcome = None
    switch(world, ON)
    for _ in range(10):
        world.clock.advance(60)
        world.tick()
    assert (world.status(job), world.scheduler.submitted) == ("submitting", [])
    switch(world, {"active": False})
    world.clock.advance(60)
    world.tick()
    assert (world.status(job), len(world.scheduler.submitted)) == ("pending", 1)


def test_all_waiting_jobs_state_the_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.reconciler.reconciler._QUEUED_PER_TICK", 1)
    world.reconciler = world.new_reconciler("one", SubmitPool(threads=2))
    switch(world, ON)
    jobs = [world.submit() for _ in range(3)]
    world.tick()
    assert {world.job(job)["status_message"] for job in jobs} == {MESSAGE}


def test_no_job_names_it_after_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.reconciler.reconciler._QUEUED_PER_TICK", 1)
    world.reconciler = world.new_reconciler("one", SubmitPool(threads=2))
    switch(world, ON)
    jobs = [world.submit() for _ in range(5)]
    world.tick()
    switch(world, {"active": False})
    world.tick()
    assert MESSAGE not in {world.job(job)["status_message"] for job in jobs}


def test_who_started_it_remains_and_the_message_changes(world: World) -> None:
    off = {"object": "maintenance", "active": False, "since": None, "started_by": None, "message": ""}
    assert world.client.get("/v1/maintenance").json() == off
    first = switch(world, ON)
    assert (first["active"], first["started_by"], first["message"]) == (True, "admin", ON["message"])
    world.clock.advance(60)
    assert switch(world, {"active": True, "message": "later"}) == {**first, "message": "later"}
    assert world.new_user("viewer", "eve").get("/v1/maintenance").json()["message"] == "later"
    assert switch(world, {"active": False}) == switch(world, {"active": False}) == off
    actions = [entry["action"] for entry in world.client.get("/v1/audit").json()["data"]]
    assert actions.count("set_maintenance") == 4


def test_only_administrators_may_switch_it(world: World) -> None:
    assert world.new_user("user", "ada").put("/v1/maintenance", json=ON).status_code == 403


def test_every_page_of_a_user_has_a_banner(world: World) -> None:
    browser = world.new_client(None)
    origin = {"Origin": "http://localhost"}
    answer = browser.post("/sign-in", data={"token": world.token, "next": "/jobs"}, headers=origin)
    assert answer.status_code == 200
    paths = ("/jobs", f"/jobs/{world.submit()}", "/compare", "/submit", "/cluster", "/admin", "/docs")
    assert not any("Maintenance mode since" in browser.get(path).text for path in paths)
    switch(world, {"active": True, "message": "<b>now</b>"})
    for path in paths:
        page = browser.get(path)
        assert page.status_code == 200, path
        assert "Maintenance mode since 2026-01-01 00:00 UTC: &lt;b&gt;now&lt;/b&gt;." in page.text, path
    assert "Maintenance mode" not in world.new_client(None).get("/sign-in").text
