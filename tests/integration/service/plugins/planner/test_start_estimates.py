"""Start estimates: queried by the reconciler at a limited rate, and never during a request."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.scheduler.base import Forecast
from tests.integration.service.cluster.test_cluster import on_slurm
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

START = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


def requested(world: World, wait: float = 0, **changes: Any) -> dict[str, Any]:
    query = {"estimate_start": "true", "wait_seconds": wait}
    answer = world.client.post("/v1/plans", params=query, json={**SPEC, **changes})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def read(world: World, estimate_id: str) -> dict[str, Any]:
    result: dict[str, Any] = world.client.get(f"/v1/start-estimates/{estimate_id}").json()
    return result


def test_plan_requests_no_estimate_by_default(world: World) -> None:
    on_slurm(world)
    assert world.client.post("/v1/plans", json=SPEC).json()["start_estimate"] is None
    world.tick(3)
    assert world.scheduler.forecast_scripts == []


def test_reconciler_answers_a_start_estimate(world: World) -> None:
    on_slurm(world)
    world.scheduler.forecast_result = Forecast(True, "Slurm would start it on node1", START)
    plan = requested(world)
    assert (plan["start_estimate"]["state"], plan["start_estimate"]["accepted"]) == ("waiting", None)
    assert world.scheduler.forecast_scripts == [], "a request asks nobody"
    world.tick()
    assert world.scheduler.forecast_scripts == [plan["script"]], "what is shown is what is asked about"
    result = read(world, plan["start_estimate"]["id"])
    assert result["state"] == "answered"
    assert (result["accepted"], result["estimated_start"]) == (True, "2026-01-01T12:30:00.000Z")
    assert result["message"] == "Slurm would start it on node1"


def test_quick_estimate_is_part_of_the_plan(world: World) -> None:
    on_slurm(world)
    world.scheduler.forecast_result = Forecast(False, "Slurm refused the job: too many nodes")
    world.app_state.notify_reconciler = lambda: world.tick()
    result = requested(world, wait=5)["start_estimate"]
    assert (result["state"], result["accepted"], result["message"]) == (
        "answered",
        False,
        "Slurm refused the job: too many nodes",
    )


def test_only_start_estimates_are_audited(world: World) -> None:
    on_slurm(world)
    assert world.client.post("/v1/plans", json=SPEC).status_code == 200
    assert world.client.get("/v1/audit").json()["data"] == []
    made = requested(world)["start_estimate"]["id"]
    viewer = world.client.post("/v1/tokens", json={"name": "vic", "role": "viewer"}).json()["token"]
    signed = {"Authorization": f"Bearer {viewer}"}
    refused = world.client.post("/v1/plans", params={"estimate_start": "true"}, json=SPEC, headers=signed)
    assert refused.status_code == 403
    entries = world.client.get("/v1/audit", params={"action": "estimate_start"}).json()["data"]
    messages = [(one["actor"], one["target"], one["outcome"], one["status"]) for one in entries]
    assert messages == [("vic", None, "refused", 403), ("admin", made, "done", None)]


@pytest.mark.databases("sqlite", "postgres")
def test_slurm_gets_one_estimate_per_five_seconds(world: World) -> None:
    on_slurm(world)
    ids = []
    for seed in range(3):
        ids.append(requested(world, seed=seed)["start_estimate"]["id"])
        world.clock.advance(1)
    for second in range(14):
        world.reconciler = world.new_reconciler(f"number {second % 2}")
        world.reconciler.run_once()
        world.reconciler.lease.release(world.clock())
        world.clock.advance(1)
    assert len(world.scheduler.forecast_scripts) == 3
    assert [read(world, one)["state"] for one in ids] == ["answered"] * 3
    assert [read(world, one)["answered_at"][17:19] for one in ids] == ["03", "08", "13"]


def test_tick_reports_waiting_estimates(world: World) -> None:
    on_slurm(world)
    for _ in range(2):
        requested(world)
    assert world.reconciler.run_once() is True
    world.clock.advance(5)
    assert world.reconciler.run_once() is False


def test_slurm_outage_answers_all_waiting_estimates(world: World) -> None:
    on_slurm(world)
    ids = [requested(world)["start_estimate"]["id"] for _ in range(3)]
    world.scheduler.unavailable = True
    world.tick()
    assert len(world.scheduler.forecast_scripts) == 1
    for one in ids:
        result = read(world, one)
        assert (result["state"], result["accepted"]) == ("answered", None)
        assert result["message"] == "Slurm does not answer: it does not answer"


def test_local_backend_has_no_queue(world: World) -> None:
    result = requested(world)["start_estimate"]
    assert (result["id"], result["state"], result["accepted"]) == (None, "answered", None)
    assert "has no queue" in result["message"]
    world.tick()
    assert world.scheduler.forecast_scripts == []


@pytest.mark.databases("sqlite", "postgres")
def test_waiting_estimates_are_limited_and_denied_to_viewers(world: World) -> None:
    on_slurm(world)
    query = "/v1/plans?estimate_start=true&wait_seconds=0"
    viewer = world.new_user("viewer", "eve")
    refused = viewer.post(query, json=SPEC)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert viewer.post("/v1/plans", json=SPEC).status_code == 200
    for _ in range(20):
        requested(world)
    full = world.client.post(query, json=SPEC)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "too_many_requests")
    assert full.headers["retry-after"]


@pytest.mark.databases("sqlite", "postgres")
def test_estimate_is_deleted_after_an_hour(world: World) -> None:
    on_slurm(world)
    first = requested(world)["start_estimate"]["id"]
    world.tick()
    world.clock.advance(3700)
    requested(world)
    world.tick()
    gone = world.client.get(f"/v1/start-estimates/{first}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "start_estimate_not_found")
