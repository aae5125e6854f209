"""Quotas per user, from submission to the scheduler."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")


def submitted(client: Any, gpus: int) -> str:
    answer = client.post("/v1/jobs", json={**SPEC, "gpus": gpus, "batch": {"size": 12}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture
def bounded(database_url: str, tmp_path: Path) -> Any:
    world = World(database_url, tmp_path / "state", max_gpus_per_user=3, max_queued_per_user=3)
    yield world
    world.database.dispose()


def test_job_waits_until_the_gpu_quota_has_room(bounded: World) -> None:
    ada, bob = bounded.new_user("user", "ada"), bounded.new_user("user", "bob")
    first, second, third = submitted(ada, 2), submitted(ada, 2), submitted(ada, 1)
    others, admins = submitted(bob, 3), submitted(bounded.client, 4)
    bounded.tick(2)
    assert [bounded.status(job) for job in (first, second, third, others, admins)] == [
        "pending",
        "queued",
        "queued",
        "pending",
        "pending",
    ]
    assert bounded.job(second)["status_message"] == (
        "Waiting for GPU quota: ada uses 2 of 3 GPUs, and this job needs 2."
    )
    assert bounded.job(third)["status_message"] == f"Waiting for GPU quota: {second} of the same user is ahead."
    events = len(bounded.client.get(f"/v1/jobs/{second}/events").json()["data"])
    bounded.tick(3)
    assert len(bounded.client.get(f"/v1/jobs/{second}/events").json()["data"]) == events, "it is said once"
    ada.post(f"/v1/jobs/{first}/cancel")
    bounded.scheduler.set_states("ended")
    bounded.tick(3)
    assert [bounded.status(job) for job in (first, second, third)] == ["cancelled", "pending", "pending"]


def test_waiting_job_can_be_cancelled_and_paused(bounded: World) -> None:
    ada = bounded.new_user("user", "ada")
    submitted(ada, 3)
    held, paused = submitted(ada, 3), submitted(ada, 3)
    bounded.tick()
    ada.post(f"/v1/jobs/{held}/cancel")
    ada.post(f"/v1/jobs/{paused}/pause")
    bounded.tick(2)
    assert [bounded.status(held), bounded.status(paused)] == ["cancelled", "paused"]


def test_job_above_the_gpu_quota_is_rejected_with_the_numbers(bounded: World) -> None:
    answer = bounded.new_user("user", "ada").post("/v1/jobs", json={**SPEC, "gpus": 4, "batch": {"size": 12}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "gpus")
    assert answer.json()["error"]["message"] == "is 4, more than the quota of 3 GPUs per user"


def test_sweep_above_the_queue_quota_is_rejected_with_the_numbers(bounded: World) -> None:
    ada = bounded.new_user("user", "ada")
    submitted(ada, 1)
    answer = ada.post("/v1/sweeps", json={"spec": SPEC, "grid": {"seed": [1, 2, 3]}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_queued")
    assert answer.json()["error"]["message"].startswith(
        "ada has 1 queued job; the quota is 3 per user: 3 more jobs do not fit; "
    )
    assert ada.post("/v1/sweeps", json={"spec": SPEC, "grid": {"seed": [1, 2]}}).status_code == 201


def test_retry_counts_against_the_queue_quota(bounded: World) -> None:
    ada = bounded.new_user("user", "ada")
    job = submitted(ada, 1)
    ada.post(f"/v1/jobs/{job}/cancel")
    bounded.tick()
    others = [submitted(ada, 1) for _ in range(3)]
    answer = ada.post(f"/v1/jobs/{job}/retry")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_queued")
    assert bounded.status(job) == "cancelled"
    ada.post(f"/v1/jobs/{others[0]}/cancel")
    bounded.tick()
    assert ada.post(f"/v1/jobs/{job}/retry").status_code == 202


def test_queue_quota_limits_one_user(bounded: World) -> None:
    ada = bounded.new_user("user", "ada")
    for _ in range(3):
        submitted(ada, 1)
    answer = ada.post("/v1/jobs", json=SPEC)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_queued")
    assert answer.json()["error"]["message"].startswith("ada has 3 queued jobs; the quota is 3 per user: ")
    submitted(bounded.new_user("user", "bob"), 1)
    bounded.tick()
    submitted(ada, 1)
