"""What one person's jobs may have at once, from submission to the scheduler."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.world import SPEC, World


def submitted(client: Any, gpus: int) -> str:
    answer = client.post("/v1/jobs", json={**SPEC, "gpus": gpus, "batch": {"size": 12}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture
def bounded(database_url: str, tmp_path: Path) -> Any:
    world = World(database_url, tmp_path / "state", max_gpus_per_user=3, max_queued_per_user=3)
    yield world
    world.database.dispose()


def test_a_job_waits_in_the_queue_until_the_persons_share_has_room(bounded: World) -> None:
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
        "waits: jobs of ada have 2 of the 3 GPUs that one person's may; it needs 2"
    )
    assert bounded.job(third)["status_message"] == f"waits behind {second}, which waits for GPUs of ada's share"
    events = len(bounded.client.get(f"/v1/jobs/{second}/events").json()["data"])
    bounded.tick(3)
    assert len(bounded.client.get(f"/v1/jobs/{second}/events").json()["data"]) == events, "it is said once"
    ada.post(f"/v1/jobs/{first}/cancel")
    bounded.scheduler.set_states("ended")
    bounded.tick(3)
    assert [bounded.status(job) for job in (first, second, third)] == ["cancelled", "pending", "pending"]


def test_what_waits_can_be_cancelled_and_paused(bounded: World) -> None:
    ada = bounded.new_user("user", "ada")
    submitted(ada, 3)
    held, paused = submitted(ada, 3), submitted(ada, 3)
    bounded.tick()
    ada.post(f"/v1/jobs/{held}/cancel")
    ada.post(f"/v1/jobs/{paused}/pause")
    bounded.tick(2)
    assert [bounded.status(held), bounded.status(paused)] == ["cancelled", "paused"]


def test_more_than_the_share_is_refused_with_the_numbers(bounded: World) -> None:
    answer = bounded.new_user("user", "ada").post("/v1/jobs", json={**SPEC, "gpus": 4, "batch": {"size": 12}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "gpus")
    assert answer.json()["error"]["message"] == "is 4, more than the 3 GPUs that one person's jobs may have at once"


def test_a_sweep_that_the_queue_does_not_hold_is_refused_with_both_numbers(bounded: World) -> None:
    ada = bounded.new_user("user", "ada")
    submitted(ada, 1)
    answer = ada.post("/v1/sweeps", json={"spec": SPEC, "grid": {"seed": [1, 2, 3]}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_queued")
    assert answer.json()["error"]["message"].startswith(
        "1 job of ada waits in the queue, and 3 is what one person's may; there is no room for 3 more"
    )
    assert ada.post("/v1/sweeps", json={"spec": SPEC, "grid": {"seed": [1, 2]}}).status_code == 201


def test_a_retry_finds_room_in_the_queue_or_is_refused(bounded: World) -> None:
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


def test_the_queue_of_one_person_has_an_end(bounded: World) -> None:
    ada = bounded.new_user("user", "ada")
    for _ in range(3):
        submitted(ada, 1)
    answer = ada.post("/v1/jobs", json=SPEC)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_queued")
    assert answer.json()["error"]["message"].startswith(
        "3 jobs of ada wait in the queue, and 3 is what one person's may"
    )
    submitted(bounded.new_user("user", "bob"), 1)
    bounded.tick()
    submitted(ada, 1)
