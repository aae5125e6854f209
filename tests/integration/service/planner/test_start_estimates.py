"""Start estimates: the reconciler requests them from the scheduler at a limited rate; a request never does."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.scheduler.base import Forecast
from tests.integration.service.cluster.test_cluster import on_slurm
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

START = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


def plan_with_estimate(world: World, wait: float = 0, **changes: Any) -> dict[str, Any]:
    query = {"ask_scheduler": "true", "wait_seconds": wait}
    answer = world.client.post("/v1/plans", params=query, json={**SPEC, **changes})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def read(world: World, ask_id: str) -> dict[str, Any]:
    body: dict[str, Any] = world.client.get(f"/v1/asks/{ask_id}").json()
    return body


def test_plan_without_ask_scheduler_has_no_estimate(world: World) -> None:
    on_slurm(world)
    assert world.client.post("/v1/plans", json=SPEC).json()["ask"] is None
    world.tick(3)
    assert world.scheduler.forecast_scripts == []


def test_reconciler_answers_and_estimate_is_read_by_id(world: World) -> None:
    on_slurm(world)
    world.scheduler.forecast_result = Forecast(True, "Slurm would start it on node1", START)
    plan = plan_with_estimate(world)
    assert (plan["ask"]["state"], plan["ask"]["accepted"]) == ("waiting", None)
    assert world.scheduler.forecast_scripts == [], "a request does not call the scheduler"
    world.tick()
    assert world.scheduler.forecast_scripts == [plan["script"]], "the estimate is for the script of the plan"
    body = read(world, plan["ask"]["id"])
    assert body["state"] == "answered"
    assert (body["accepted"], body["estimated_start"]) == (True, "2026-01-01T12:30:00.000Z")
    assert body["message"] == "Slurm would start it on node1"


def test_quick_estimate_is_part_of_the_plan(world: World) -> None:
    on_slurm(world)
    world.scheduler.forecast_result = Forecast(False, "Slurm refused the job: too many nodes")
    world.services.notify_reconciler = lambda: world.tick()
    body = plan_with_estimate(world, wait=5)["ask"]
    assert (body["state"], body["accepted"], body["message"]) == (
        "answered",
        False,
        "Slurm refused the job: too many nodes",
    )


def test_requested_estimates_are_audited_and_plans_are_not(world: World) -> None:
    on_slurm(world)
    assert world.client.post("/v1/plans", json=SPEC).status_code == 200
    assert world.client.get("/v1/audit").json()["data"] == []
    made = plan_with_estimate(world)["ask"]["id"]
    viewer = world.client.post("/v1/tokens", json={"name": "vic", "role": "viewer"}).json()["token"]
    signed = {"Authorization": f"Bearer {viewer}"}
    refused = world.client.post("/v1/plans", params={"ask_scheduler": "true"}, json=SPEC, headers=signed)
    assert refused.status_code == 403
    entries = world.client.get("/v1/audit", params={"action": "ask_scheduler"}).json()["data"]
    rows = [(one["actor"], one["target"], one["outcome"], one["status"]) for one in entries]
    assert rows == [("vic", None, "refused", 403), ("admin", made, "done", None)]


@pytest.mark.databases("sqlite", "postgres")
def test_one_estimate_per_five_seconds_for_all_services(world: World) -> None:
    on_slurm(world)
    ids = []
    for seed in range(3):
        ids.append(plan_with_estimate(world, seed=seed)["ask"]["id"])
        world.clock.advance(1)
    for second in range(14):
        world.reconciler = world.new_reconciler(f"number {second % 2}")
        world.reconciler.run_once()
        world.reconciler.lease.release(world.clock())
        world.clock.advance(1)
    assert len(world.scheduler.forecast_scripts) == 3
    assert [read(world, one)["state"] for one in ids] == ["answered"] * 3
    assert [read(world, one)["answered_at"][17:19] for one in ids] == ["03", "08", "13"]


def test_tick_reports_more_work_while_an_estimate_waits(world: World) -> None:
    on_slurm(world)
    for _ in range(2):
        plan_with_estimate(world)
    assert world.reconciler.run_once() is True
    world.clock.advance(5)
    assert world.reconciler.run_once() is False


def test_failed_call_answers_all_waiting_estimates(world: World) -> None:
    on_slurm(world)
    ids = [plan_with_estimate(world)["ask"]["id"] for _ in range(3)]
    world.scheduler.unavailable = True
    world.tick()
    assert len(world.scheduler.forecast_scripts) == 1
    for one in ids:
        body = read(world, one)
        assert (body["state"], body["accepted"]) == ("answered", None)
        assert body["message"] == "Slurm does not answer: it does not answer"


def test_local_backend_has_no_queue(world: World) -> None:
    body = plan_with_estimate(world)["ask"]
    assert (body["id"], body["state"], body["accepted"]) == (None, "answered", None)
    assert "no queue to ask" in body["message"]
    world.tick()
    assert world.scheduler.forecast_scripts == []


@pytest.mark.databases("sqlite", "postgres")
def test_waiting_estimates_are_limited_and_need_a_user(world: World) -> None:
    on_slurm(world)
    query = "/v1/plans?ask_scheduler=true&wait_seconds=0"
    viewer = world.new_user("viewer", "eve")
    refused = viewer.post(query, json=SPEC)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert viewer.post("/v1/plans", json=SPEC).status_code == 200
    for _ in range(20):
        plan_with_estimate(world)
    full = world.client.post(query, json=SPEC)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "too_many_requests")
    assert full.headers["retry-after"]


@pytest.mark.databases("sqlite", "postgres")
def test_estimate_is_deleted_after_an_hour(world: World) -> None:
    on_slurm(world)
    first = plan_with_estimate(world)["ask"]["id"]
    world.tick()
    world.clock.advance(3700)
    plan_with_estimate(world)
    world.tick()
    gone = world.client.get(f"/v1/asks/{first}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "ask_not_found")
