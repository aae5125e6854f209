"""What the scheduler says of a plan: asked by the reconciler, seldom, and never in a request."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.scheduler.base import Forecast
from tests.integration.service.cluster.test_cluster import on_slurm
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

START = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


def asked(world: World, wait: float = 0, **changes: Any) -> dict[str, Any]:
    query = {"ask_scheduler": "true", "wait_seconds": wait}
    answer = world.client.post("/v1/plans", params=query, json={**SPEC, **changes})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def read(world: World, ask_id: str) -> dict[str, Any]:
    found: dict[str, Any] = world.client.get(f"/v1/asks/{ask_id}").json()
    return found


def test_without_being_told_to_nobody_asks(world: World) -> None:
    on_slurm(world)
    assert world.client.post("/v1/plans", json=SPEC).json()["ask"] is None
    world.tick(3)
    assert world.scheduler.forecast_scripts == []


def test_the_question_is_answered_by_the_reconciler_and_read_by_its_id(world: World) -> None:
    on_slurm(world)
    world.scheduler.forecast_result = Forecast(True, "Slurm would start it on node1", START)
    plan = asked(world)
    assert (plan["ask"]["state"], plan["ask"]["accepted"]) == ("waiting", None)
    assert world.scheduler.forecast_scripts == [], "a request asks nobody"
    world.tick()
    assert world.scheduler.forecast_scripts == [plan["script"]], "what is shown is what is asked about"
    found = read(world, plan["ask"]["id"])
    assert found["state"] == "answered"
    assert (found["accepted"], found["estimated_start"]) == (True, "2026-01-01T12:30:00.000Z")
    assert found["message"] == "Slurm would start it on node1"


def test_a_quick_answer_comes_with_the_plan(world: World) -> None:
    on_slurm(world)
    world.scheduler.forecast_result = Forecast(False, "Slurm refused the job: too many nodes")
    world.services.notify_reconciler = lambda: world.tick()
    found = asked(world, wait=5)["ask"]
    assert (found["state"], found["accepted"], found["message"]) == (
        "answered",
        False,
        "Slurm refused the job: too many nodes",
    )


def test_who_asks_is_in_the_audit_and_who_only_plans_is_not(world: World) -> None:
    on_slurm(world)
    assert world.client.post("/v1/plans", json=SPEC).status_code == 200
    assert world.client.get("/v1/audit").json()["data"] == []
    made = asked(world)["ask"]["id"]
    viewer = world.client.post("/v1/tokens", json={"name": "vic", "role": "viewer"}).json()["token"]
    signed = {"Authorization": f"Bearer {viewer}"}
    refused = world.client.post("/v1/plans", params={"ask_scheduler": "true"}, json=SPEC, headers=signed)
    assert refused.status_code == 403
    entries = world.client.get("/v1/audit", params={"action": "ask_scheduler"}).json()["data"]
    told = [(one["actor"], one["target"], one["outcome"], one["status"]) for one in entries]
    assert told == [("vic", None, "refused", 403), ("admin", made, "done", None)]


@pytest.mark.databases("sqlite", "postgres")
def test_slurm_is_asked_once_in_five_seconds_whoever_reconciles(world: World) -> None:
    on_slurm(world)
    ids = []
    for seed in range(3):
        ids.append(asked(world, seed=seed)["ask"]["id"])
        world.clock.advance(1)
    for second in range(14):
        world.reconciler = world.new_reconciler(f"number {second % 2}")
        world.reconciler.run_once()
        world.reconciler.lease.release(world.clock())
        world.clock.advance(1)
    assert len(world.scheduler.forecast_scripts) == 3
    assert [read(world, one)["state"] for one in ids] == ["answered"] * 3
    assert [read(world, one)["answered_at"][17:19] for one in ids] == ["03", "08", "13"]


def test_a_tick_says_that_there_is_more_to_do_while_a_question_waits(world: World) -> None:
    on_slurm(world)
    for _ in range(2):
        asked(world)
    assert world.reconciler.run_once() is True
    world.clock.advance(5)
    assert world.reconciler.run_once() is False


def test_when_slurm_does_not_answer_all_that_wait_are_told_so_at_once(world: World) -> None:
    on_slurm(world)
    ids = [asked(world)["ask"]["id"] for _ in range(3)]
    world.scheduler.unavailable = True
    world.tick()
    assert len(world.scheduler.forecast_scripts) == 1
    for one in ids:
        found = read(world, one)
        assert (found["state"], found["accepted"]) == ("answered", None)
        assert found["message"] == "Slurm does not answer: it does not answer"


def test_the_local_backend_says_that_there_is_no_queue(world: World) -> None:
    found = asked(world)["ask"]
    assert (found["id"], found["state"], found["accepted"]) == (None, "answered", None)
    assert "no queue to ask" in found["message"]
    world.tick()
    assert world.scheduler.forecast_scripts == []


@pytest.mark.databases("sqlite", "postgres")
def test_only_so_many_may_wait_and_a_viewer_may_not_ask(world: World) -> None:
    on_slurm(world)
    query = "/v1/plans?ask_scheduler=true&wait_seconds=0"
    viewer = world.new_user("viewer", "eve")
    refused = viewer.post(query, json=SPEC)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert viewer.post("/v1/plans", json=SPEC).status_code == 200
    for _ in range(20):
        asked(world)
    full = world.client.post(query, json=SPEC)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "too_many_requests")
    assert full.headers["retry-after"]


@pytest.mark.databases("sqlite", "postgres")
def test_an_answer_is_forgotten_after_an_hour(world: World) -> None:
    on_slurm(world)
    first = asked(world)["ask"]["id"]
    world.tick()
    world.clock.advance(3700)
    asked(world)
    world.tick()
    gone = world.client.get(f"/v1/asks/{first}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "ask_not_found")
