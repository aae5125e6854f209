"""The audit log: actor, address and outcome of every change."""

import re
from typing import Any

import pytest

from service.audit.log import CURRENT_REQUEST
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

UNAUDITED_ROUTES = {"make_plan", "plan_data", "create_sign_in_nonce", "sign_in_with_munge", "exchange_sign_in_code"}
"""They change nothing, or nobody is authenticated before they do."""
IDS = {
    "job_id": "job_00000000000000000000000000",
    "checkpoint_id": "ckpt_00000000000000000000000000",
    "webhook_id": "whk_00000000000000000000000000",
    "token_id": "000000000000",
    "digest": "sha256:" + "0" * 64,
}


def entries(world: World, query: str = "") -> list[dict[str, Any]]:
    answer = world.client.get(f"/v1/audit?limit=200&{query}")
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


def test_entry_has_actor_action_time_address_and_request_id(world: World) -> None:
    ada = world.new_user("user", "ada")
    job = ada.post("/v1/jobs", json=SPEC, headers={"X-Request-ID": "from-ada"}).json()["id"]
    (entry,) = entries(world)
    own = ada.get("/v1/tokens/self").json()["id"]
    assert {key: entry[key] for key in ("actor", "token_id", "role", "action", "target", "outcome")} == {
        "actor": "ada",
        "token_id": own,
        "role": "user",
        "action": "submit_job",
        "target": job,
        "outcome": "done",
    }
    assert (entry["address"], entry["request_id"], entry["status"]) == ("testclient", "from-ada", None)
    assert entry["created_at"] == "2026-01-01T00:00:00.000Z"


def test_refused_changes_are_audited_and_reads_are_not(world: World) -> None:
    job = world.submit()
    bob = world.new_user("user", "bob")
    bob.get(f"/v1/jobs/{job}")
    bob.post(f"/v1/jobs/{job}/cancel")
    (entry,) = entries(world, "actor=bob")
    assert (entry["action"], entry["target"], entry["outcome"], entry["status"]) == (
        "cancel_job",
        job,
        "refused",
        403,
    )


def test_entry_is_in_the_transaction_of_the_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is rolled back leaves no entry with the outcome `done`."""
    job = world.submit()
    monkeypatch.setattr("service.jobs.service.job_resource", lambda *_: 1 / 0)
    answer = world.client.post(f"/v1/jobs/{job}/cancel")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.headers["x-request-id"].startswith("req_")
    (entry,) = entries(world, "action=cancel_job")
    assert (entry["outcome"], entry["status"]) == ("failed", 500)
    assert world.job(job)["desired"] == "run"


@pytest.mark.databases("postgres")
def test_every_changing_route_writes_an_entry(world: World) -> None:
    """All routes of the OpenAPI document are called, so that new ones are covered."""
    paged = []
    for path, methods in world.app.openapi()["paths"].items():
        for method, operation in methods.items():
            if method in ("get", "head") or "worker" in operation.get("tags", ()):
                continue
            name = operation["operationId"]
            if name in UNAUDITED_ROUTES:
                continue
            filled = re.sub(r"{(\w+)}", lambda match: IDS.get(match[1], "x"), path)
            world.client.request(method, filled, content=b"{}", headers={"Content-Type": "application/json"})
            paged.append(name)
            assert entries(world, f"action={name}"), f"{method} {path} left no entry"
    assert {"submit_job", "cancel_job", "put_code", "create_token", "create_webhook", "delete_job"} <= set(paged)


def test_changes_by_the_service_are_not_audited(world: World) -> None:
    world.submit()
    before = len(entries(world))
    world.tick(3)
    assert len(entries(world)) == before
    assert CURRENT_REQUEST.get() is None


def test_failed_authentications_are_aggregated(world: World) -> None:
    anonymous = world.new_client("ty_000000000000_" + "x" * 43)
    for _ in range(5):
        assert anonymous.get("/v1/jobs").status_code == 401
    world.clock.advance(61)
    anonymous.get("/v1/jobs")
    rows = entries(world, "action=authenticate")
    assert sum(entry["detail"]["count"] for entry in rows) == 6
    assert len(rows) == 2
    assert rows[0]["actor"] == "anonymous"
    assert rows[0]["detail"]["addresses"] == {"testclient": 5}


@pytest.mark.databases("postgres")
def test_entries_are_paged_and_filtered(world: World) -> None:
    for _ in range(3):
        world.submit()
    job = world.submit()
    world.clock.advance(60)
    world.client.post(f"/v1/jobs/{job}/cancel")
    first = world.client.get("/v1/audit?limit=2").json()
    second = world.client.get(f"/v1/audit?limit=200&after={first['last_id']}").json()
    assert first["has_more"]
    assert len({entry["id"] for entry in first["data"] + second["data"]}) == 5
    assert [entry["action"] for entry in entries(world, f"target={job}")] == ["cancel_job", "submit_job"]
    assert len(entries(world, "created_after=2026-01-01T00:01:00Z")) == 1
    assert entries(world, "outcome=refused") == []
    for query, param in (("after=x", "after"), ("outcome=odd", "outcome")):
        answer = world.client.get(f"/v1/audit?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


@pytest.mark.databases("postgres")
def test_audit_requires_an_administrator_and_has_a_retention(world: World) -> None:
    assert world.new_user("user", "ada").get("/v1/audit").status_code == 403
    world.submit()
    world.clock.advance(365 * 86_400 - 1)
    world.run_maintenance()
    assert len(entries(world)) == 1
    world.clock.advance(2)
    world.run_maintenance()
    assert entries(world) == []


def test_refusals_are_counted_by_token_action_and_minute(world: World) -> None:
    job = world.submit()
    viewer = world.new_user("viewer", "eve")
    for _ in range(12):
        assert viewer.post(f"/v1/jobs/{job}/cancel").status_code == 403
        assert viewer.post(f"/v1/jobs/{job}/pause").status_code == 403
    assert len(entries(world, "actor=eve")) == 2
    world.clock.advance(61)
    world.run_maintenance()
    rows = entries(world, "actor=eve&action=cancel_job")
    assert [row["detail"] for row in rows] == [{"count": 11}, {}]
    assert {(row["outcome"], row["status"], row["target"]) for row in rows} == {("refused", 403, job)}
    assert len(entries(world, "actor=eve")) == 4


def test_continuing_refusals_add_few_entries(world: World) -> None:
    job = world.submit()
    viewer = world.new_user("viewer", "eve")
    for _ in range(150):
        assert viewer.post(f"/v1/jobs/{job}/cancel").status_code == 403
        world.clock.advance(61)
    world.clock.advance(3600)
    world.run_maintenance()
    rows = entries(world, "actor=eve")
    assert len(rows) < 12
    assert sum(row["detail"].get("count", 1) for row in rows) == 150
    world.clock.advance(3600)
    world.run_maintenance()
    viewer.post(f"/v1/jobs/{job}/cancel")
    assert entries(world, "actor=eve")[0]["detail"] == {}, "after an hour without refusals, the next one has an entry"


@pytest.mark.databases("postgres")
def test_refusals_over_the_limit_are_counted_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.audit.log._MAX_COUNTED_REFUSALS", 1)
    job = world.submit()
    viewer = world.new_user("viewer", "eve")
    for action in ("cancel", "pause", "pause", "resume", "cancel"):
        assert viewer.post(f"/v1/jobs/{job}/{action}").status_code == 403
    world.clock.advance(61)
    world.run_maintenance()
    assert [row["detail"] for row in entries(world, "actor=eve&action=cancel_job")] == [{"count": 1}, {}]
    others = entries(world, "action=other_refusals")
    assert [(row["actor"], row["outcome"], row["detail"]) for row in others] == [
        ("anonymous", "refused", {"count": 2}),
        ("anonymous", "refused", {}),
    ]


def test_changes_are_never_counted_together(world: World) -> None:
    job = world.submit()
    for _ in range(3):
        assert world.client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert len(entries(world, "action=cancel_job")) == 3
