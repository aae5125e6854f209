"""Sweeps: created as a whole or not at all, limited in concurrency, and cancelled."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from service.plugins.sweeps.acceptance import BatchAcceptance
from service.specs.acceptance import RejectedSpec
from tests.support.statements import statements_of_request
from tests.support.world import SPEC, World
from trainyard.contract.problems import Problem

pytestmark = pytest.mark.databases("sqlite")

BODY: dict[str, Any] = {"name": "rates", "spec": SPEC, "grid": {"optimizer.lr": [0.1, 0.2, 0.3]}, "max_parallel": 1}


@pytest.fixture
def sweep(world: World) -> dict[str, Any]:
    answer = world.client.post("/v1/sweeps", json=BODY)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


def read_sweep(world: World, sweep: dict[str, Any]) -> dict[str, Any]:
    detail: dict[str, Any] = world.client.get(f"/v1/sweeps/{sweep['id']}").json()
    return detail


def test_members_are_jobs_that_can_be_listed_by_sweep(world: World, sweep: dict[str, Any]) -> None:
    other = world.submit()
    assert (sweep["size"], sweep["fields"], sweep["counts"]) == (3, ["optimizer.lr"], {"queued": 3})
    jobs = world.client.get("/v1/jobs", params={"sweep": sweep["id"]}).json()["data"]
    assert {job["id"] for job in jobs} == {member["job_id"] for member in sweep["members"]}
    assert other not in {job["id"] for job in jobs}
    by_id = {job["id"]: job for job in jobs}
    for member in sweep["members"]:
        job = by_id[member["job_id"]]
        assert job["spec"]["optimizer"]["lr"] == member["values"]["optimizer.lr"]
        assert job["sweep_id"] == sweep["id"]


@pytest.mark.databases("sqlite", "postgres")
def test_each_member_adds_at_most_one_statement(world: World) -> None:
    counts = []
    for size in (10, 10, 100):  # The first also inserts the keys of the values.
        with statements_of_request("INSERT INTO sweeps") as statements:
            body = {"spec": {**SPEC, "metadata": {"team": "vision"}}, "grid": {"seed": list(range(size))}}
            sweep = world.client.post("/v1/sweeps", json=body).json()
        assert len(sweep["members"]) == size
        counts.append(len(statements))
    assert 10 < counts[1] <= counts[2] <= counts[1] + 90, counts
    last = sweep["members"][-1]["job_id"]
    events = world.client.get(f"/v1/jobs/{last}/events").json()["data"]
    assert [(event["id"], event["type"]) for event in events] == [("evt_2", "status"), ("evt_1", "created")]
    matches = world.client.get("/v1/jobs", params={"where": "seed = 99 and metadata.team = vision"}).json()["data"]
    assert [job["id"] for job in matches] == [last]


def test_max_parallel_limits_concurrent_members(world: World, sweep: dict[str, Any]) -> None:
    world.tick(2)
    assert len(world.scheduler.submitted) == 1
    first, second, third = read_sweep(world, sweep)["members"]
    assert first["status"] == "pending"
    for waiting in (second, third):
        assert waiting["status"] == "queued"
        assert waiting["status_message"] == (
            f"Waiting for other members of sweep {sweep['id']}, which runs at most 1 job at once."
        )
    worker = world.worker(first["job_id"])
    worker.execution = worker.claim().json()["execution"]
    worker.end("completed")
    world.tick(3)
    assert len(world.scheduler.submitted) == 2
    assert read_sweep(world, sweep)["counts"] == {"succeeded": 1, "pending": 1, "queued": 1}


def test_waiting_member_can_be_cancelled_alone(world: World, sweep: dict[str, Any]) -> None:
    world.tick(2)
    last = sweep["members"][-1]["job_id"]
    world.client.post(f"/v1/jobs/{last}/cancel")
    world.tick()
    assert world.status(last) == "cancelled"


def test_invalid_member_rejects_the_whole_sweep(world: World) -> None:
    body = {**BODY, "grid": {"optimizer.lr": [0.1, -1], "gpus": [1, 2]}}
    answer = world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 422
    problems = answer.json()["problems"]
    assert [problem["param"] for problem in problems] == ["members.2.optimizer.lr", "members.3.optimizer.lr"]
    assert "in the member with optimizer.lr=-1 gpus=1" in problems[0]["message"]
    assert world.client.get("/v1/jobs").json()["data"] == []
    assert world.client.get("/v1/sweeps").json()["data"] == []


@pytest.mark.databases("sqlite", "postgres")
def test_incompatible_adapters_reject_the_whole_sweep(world: World) -> None:
    spec = {**SPEC, "model": {"source": "builtin", "name": "mlp", "sizes": [8, 12, 3]}}
    answer = world.client.post("/v1/sweeps", json={**BODY, "spec": spec, "grid": {"lora_rank": [8, 16]}})
    assert [problem["param"] for problem in answer.json()["problems"]] == ["members.1.lora_rank"]
    assert world.client.get("/v1/sweeps").json()["data"] == []


def test_duplicate_value_is_named(world: World) -> None:
    answer = world.client.post("/v1/sweeps", json={**BODY, "grid": {"optimizer.lr": [0.1, 0.2, 0.1]}})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, "grid.optimizer.lr")
    assert "contains 0.1 twice" in error["message"]


def test_field_and_its_subfield_cannot_be_combined(world: World) -> None:
    whole, part = {"optimizer": {"name": "sgd", "lr": 0.2}}, {"optimizer.lr": 0.1}
    grid = {path: [value] for path, value in (part | whole).items()}
    for param, body in (("grid", {"grid": grid}), ("members.0", {"members": [part | whole]})):
        answer = world.client.post("/v1/sweeps", json={"spec": SPEC, **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
        assert answer.json()["error"]["message"] == ("contains `optimizer.lr` and `optimizer`, which overlap")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"optimizer.lr": ["1e-4", "0.0001"]}, "optimizer.lr=0.0001 is the same job as optimizer.lr=1e-4"),
        ({"seed": [1, "1"], "optimizer.lr": [0.1]}, "seed=1 optimizer.lr=0.1 is the same job as seed=1"),
        ({"seed": [1, 1.0]}, "seed=1.0 is the same job as seed=1; list each value once"),
    ],
)
def test_two_spellings_of_one_number_are_the_same_job(world: World, grid: dict[str, Any], message: str) -> None:
    error = world.client.post("/v1/sweeps", json={**BODY, "grid": grid}).json()["error"]
    assert error["param"] == "grid"
    assert error["message"].startswith(message)


def test_list_of_members_may_contain_duplicates(world: World) -> None:
    body = {"spec": SPEC, "members": [{"seed": 1}, {"seed": 1}]}
    assert world.client.post("/v1/sweeps", json=body).json()["size"] == 2


def test_force_is_recorded_per_member_and_changes_the_digest(world: World) -> None:
    key = {"Idempotency-Key": "once"}
    made = world.client.post("/v1/sweeps?force=true", json=BODY, headers=key).json()
    for member in made["members"]:
        events = world.client.get(f"/v1/jobs/{member['job_id']}/events").json()["data"]
        assert [one["level"] for one in events if one["type"] == "preflight_overridden"] == ["warning"]
    assert world.client.post("/v1/sweeps", json=BODY, headers=key).status_code == 409


def test_too_many_members_are_rejected_without_expanding_them(world: World) -> None:
    body = {**BODY, "grid": {f"metadata.k{n}": list(range(1000)) for n in range(9)}}
    answer = world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 422
    assert "the limit is 200" in answer.json()["error"]["message"]


def test_one_idempotency_key_creates_one_sweep(world: World) -> None:
    key = {"Idempotency-Key": "once"}
    first = world.client.post("/v1/sweeps", json=BODY, headers=key)
    again = world.client.post("/v1/sweeps", json=BODY, headers=key)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert len(world.client.get("/v1/jobs").json()["data"]) == 3
    other = world.client.post("/v1/sweeps", json={**BODY, "max_parallel": 2}, headers=key)
    assert other.status_code == 409


def test_cancel_ends_every_member(world: World, sweep: dict[str, Any]) -> None:
    world.tick(2)
    answer = world.client.post(f"/v1/sweeps/{sweep['id']}/cancel")
    assert answer.status_code == 202
    world.tick(2)
    world.scheduler.set_states("ended")
    world.tick(2)
    assert read_sweep(world, sweep)["counts"] == {"cancelled": 3}
    assert world.client.post(f"/v1/sweeps/{sweep['id']}/cancel").status_code == 202


def test_other_users_can_read_but_not_cancel(world: World, sweep: dict[str, Any]) -> None:
    other = world.new_user("user", "other")
    assert other.get(f"/v1/sweeps/{sweep['id']}").status_code == 200
    assert other.post(f"/v1/sweeps/{sweep['id']}/cancel").status_code == 403
    assert world.new_user("viewer", "eve").post("/v1/sweeps", json=BODY).status_code == 403


def test_deleted_member_stays_listed_as_deleted(world: World, sweep: dict[str, Any]) -> None:
    gone = sweep["members"][0]["job_id"]
    world.client.post(f"/v1/jobs/{gone}/cancel")
    world.tick()
    assert world.client.delete(f"/v1/jobs/{gone}").status_code == 204
    first = read_sweep(world, sweep)["members"][0]
    assert (first["job_id"], first["status"], first["status_message"]) == (gone, None, "deleted")


@pytest.mark.databases("sqlite", "postgres")
def test_sweeps_are_listed_newest_first(world: World, sweep: dict[str, Any]) -> None:
    world.clock.advance(5)
    newer = world.client.post("/v1/sweeps", json=BODY).json()
    page = world.client.get("/v1/sweeps", params={"limit": 1}).json()
    assert [one["id"] for one in page["data"]] == [newer["id"]]
    rest = world.client.get("/v1/sweeps", params={"after": page["last_id"]}).json()
    assert [one["id"] for one in rest["data"]] == [sweep["id"]]


def test_too_many_members_are_refused_before_any_is_validated(world: World) -> None:
    limit = world.settings.max_sweep_members
    answer = world.client.post("/v1/sweeps", json={"spec": SPEC, "members": [{"not a path": 1}] * (limit + 1)})
    assert answer.status_code == 422
    assert f"the limit is {limit}" in answer.text


@pytest.mark.databases("sqlite", "postgres")
def test_sweeps_of_one_user_are_checked_one_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2)
    met: list[int] = []

    def check(self: BatchAcceptance, owner: str, documents: Sequence[Any], now: Any) -> list[RejectedSpec]:
        try:
            met.append(together.wait(0.3))
        except threading.BrokenBarrierError:
            together.reset()
        return [RejectedSpec((Problem(param="gpus", message="is refused"),)) for _ in documents]

    monkeypatch.setattr(BatchAcceptance, "accept_all", check)

    async def submit() -> list[int]:
        transport = httpx.ASGITransport(app=world.app)
        async with httpx.AsyncClient(
            transport=transport, base_url=str(world.client.base_url), headers=world.client.headers
        ) as http:
            answers = await asyncio.gather(*(http.post("/v1/sweeps", json=BODY) for _ in range(3)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(submit()) == [422, 422, 422]
    assert met == []
