"""Job routes over HTTP."""

import threading
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")


def test_submitted_job_is_stored_with_its_resolved_spec(world: World) -> None:
    answer = world.client.post("/v1/jobs", json=SPEC)
    assert answer.status_code == 201
    job = answer.json()
    assert (job["object"], job["status"], job["desired"], job["created_by"]) == ("job", "queued", "run", "admin")
    assert (job["spec"]["strategy"], job["spec"]["precision"], job["spec"]["backend"]) == ("ddp", "fp32", "gloo")
    assert job["created_at"] == "2026-01-01T00:00:00.000Z"
    assert world.job(job["id"]) == job
    assert world.scheduler.submitted == []


def test_yaml_is_accepted_by_content_type(world: World) -> None:
    answer = world.client.post("/v1/jobs", content=yaml.safe_dump(SPEC), headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 201
    assert answer.json()["name"] == "parity"


def test_same_key_and_spec_replay_the_response(world: World) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = world.client.post("/v1/jobs", json=SPEC, headers=headers)
    again = world.client.post("/v1/jobs", json=SPEC, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(world.client.get("/v1/jobs").json()["data"]) == 1


def test_same_key_with_another_spec_is_a_conflict(world: World) -> None:
    headers = {"Idempotency-Key": "k-1"}
    world.client.post("/v1/jobs", json=SPEC, headers=headers)
    other = world.client.post("/v1/jobs", json={**SPEC, "seed": 1}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")


@pytest.mark.databases("sqlite", "postgres")
def test_concurrent_requests_with_one_key_create_one_job(world: World) -> None:
    answers: list[tuple[int, str]] = []

    def post() -> None:
        answer = world.new_client(world.token).post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "twin"})
        answers.append((answer.status_code, answer.json().get("id")))

    threads = [threading.Thread(target=post) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(world.client.get("/v1/jobs").json()["data"]) == 1
    assert {status for status, _ in answers} == {201}
    assert len({job for _, job in answers}) == 1


@pytest.mark.databases("sqlite", "postgres")
def test_list_is_newest_first_and_stable_under_inserts(world: World) -> None:
    ids = []
    for n in range(5):
        world.clock.advance(1)
        ids.append(world.submit(name=f"job {n}"))
    first = world.client.get("/v1/jobs?limit=2").json()
    assert [job["id"] for job in first["data"]] == [ids[4], ids[3]]
    assert (first["object"], first["first_id"], first["last_id"], first["has_more"]) == ("list", ids[4], ids[3], True)
    world.clock.advance(1)
    world.submit(name="late")
    second = world.client.get(f"/v1/jobs?limit=3&after={first['last_id']}").json()
    assert [job["id"] for job in second["data"]] == [ids[2], ids[1], ids[0]]
    assert second["has_more"] is False
    upwards = world.client.get("/v1/jobs?order=asc&limit=1").json()
    assert upwards["data"][0]["id"] == ids[0]


@pytest.mark.databases("sqlite", "postgres")
def test_list_is_filtered(world: World) -> None:
    a = world.submit(name="a", metadata={"team": "nlp", "q'": "%"})
    b = world.submit(name="b", metadata={"team": "vision"})
    for query, expected in [
        ("name=a", [a]),
        ("metadata[team]=vision", [b]),
        ("metadata[q']=%25", [a]),
        ("metadata[q']=x", []),
        ("status=queued&status=running&name=b", [b]),
        ("status=succeeded", []),
        ("created_by=nobody", []),
    ]:
        jobs = world.client.get(f"/v1/jobs?{query}").json()["data"]
        assert [job["id"] for job in jobs] == expected, query


def test_cancel_sets_the_desired_state_and_is_idempotent(world: World) -> None:
    job = world.submit()
    first = world.client.post(f"/v1/jobs/{job}/cancel")
    assert (first.status_code, first.json()["status"], first.json()["desired"]) == (202, "queued", "cancelled")
    assert world.client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    world.tick()
    assert world.status(job) == "cancelled"
    assert world.client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    events = world.client.get(f"/v1/jobs/{job}/events?order=asc").json()["data"]
    assert [event["type"] for event in events] == ["created", "status", "cancel_requested", "status"]


@pytest.mark.databases("sqlite", "postgres")
def test_events_page_by_cursor(world: World) -> None:
    job = world.submit()
    world.start(job)
    everything = world.client.get(f"/v1/jobs/{job}/events?order=asc&limit=200").json()["data"]
    page = world.client.get(f"/v1/jobs/{job}/events?order=asc&limit=2").json()
    rest = world.client.get(f"/v1/jobs/{job}/events?order=asc&limit=200&after={page['last_id']}").json()
    assert page["data"] + rest["data"] == everything
    assert len(everything) > 3


def test_script_is_the_submitted_one(world: World) -> None:
    job = world.submit()
    early = world.client.get(f"/v1/jobs/{job}/script")
    assert (early.status_code, early.json()["error"]["code"]) == (404, "not_submitted")
    world.tick()
    script = world.client.get(f"/v1/jobs/{job}/script").json()
    assert script["script"] == world.scheduler.submitted[0].script
    assert "parity" not in script["script"].split("exec")[0].replace(job, "")


def test_templates_are_ready_to_post(world: World) -> None:
    templates = world.client.get("/v1/templates").json()["data"]
    assert {"digits_ddp", "gpt_stdlib", "mlp_parity"} <= {template["name"] for template in templates}
    for template in templates:
        one = world.client.get(f"/v1/templates/{template['name']}").json()
        assert one == template
        answer = world.client.post("/v1/jobs", json=one["spec"])
        if one["spec"]["task"] == "script":
            assert answer.json()["error"]["param"] == "code", "the command line uploads a preset's program"
        else:
            assert answer.status_code == 201


@pytest.mark.databases("sqlite", "postgres")
def test_probes_need_no_token_and_name_the_components(world: World) -> None:
    anonymous = world.new_client(None)
    assert anonymous.get("/livez").json() == {"status": "ok"}
    checks = {"database": "ok", "runs_dir": "ok", "disk": "ok", "scheduler": "not polled yet"}
    assert anonymous.get("/readyz").json() == {"status": "ok", "checks": checks}
    world.submit()
    assert 'trainyard_jobs{status="queued"} 1.0' in anonymous.get("/metrics").text
    world.settings.runs.rmdir()
    broken = anonymous.get("/readyz")
    assert broken.status_code == 503
    assert "not a writable directory" in broken.json()["checks"]["runs_dir"]


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.fault_scenario(34)
def test_database_that_takes_no_writes_is_a_503_and_not_ready(world: World) -> None:
    worker = world.start(world.submit())
    engine = world.database._writer
    is_sqlite = world.database.dialect == "sqlite"
    switch = "PRAGMA query_only = ON" if is_sqlite else "SET default_transaction_read_only = on"

    @sa.event.listens_for(engine, "checkout")
    def refuse_writes(connection: Any, *_: Any) -> None:
        connection.cursor().execute(switch)
        connection.commit()

    try:
        refused = world.client.post("/v1/jobs", json=SPEC)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database")
        unstored = worker.metrics([("train/loss", 1, 1.0)])
        assert (unstored.status_code, unstored.json()["error"]["code"]) == (503, "database")
        assert unstored.json()["error"]["message"].startswith("the database ")
        unready = world.new_client(None).get("/readyz")
        assert unready.status_code == 503
        assert "database" in unready.json()["checks"]["database"]
    finally:
        sa.event.remove(engine, "checkout", refuse_writes)
        # Later connections accept writes.
        engine.dispose()
    assert world.new_client(None).get("/readyz").status_code == 200
    assert worker.metrics([("train/loss", 1, 1.0)]).status_code == 200
    assert world.client.post("/v1/jobs", json=SPEC).status_code == 201


@pytest.mark.databases("sqlite", "postgres")
def test_readiness_reports_an_unreachable_scheduler_and_stays_ready(world: World) -> None:
    anonymous = world.new_client(None)
    world.tick()
    assert anonymous.get("/readyz").json()["checks"]["scheduler"] == "ok"
    world.scheduler.unavailable = True
    world.clock.advance(60)
    world.tick()
    degraded = anonymous.get("/readyz")
    assert (degraded.status_code, degraded.json()["status"]) == (200, "degraded")
    assert degraded.json()["checks"]["scheduler"] == "does not answer: it does not answer"
    world.scheduler.unavailable = False
    world.clock.advance(60)
    world.tick()
    assert anonymous.get("/readyz").json()["status"] == "ok"
    world.clock.advance(3600)
    assert "is a reconciler running?" in anonymous.get("/readyz").json()["checks"]["scheduler"]


def test_role_limits_what_a_token_can_do(world: World) -> None:
    mine = world.new_user("user", "ann")
    job = mine.post("/v1/jobs", json=SPEC).json()["id"]
    other, viewer = world.new_user("user", "bob"), world.new_user("viewer", "eve")
    assert other.get(f"/v1/jobs/{job}").status_code == 200
    assert other.post(f"/v1/jobs/{job}/cancel").json()["error"]["type"] == "permission_error"
    assert viewer.get("/v1/jobs").status_code == 200
    assert viewer.post("/v1/jobs", json=SPEC).status_code == 403
    assert mine.post(f"/v1/jobs/{job}/cancel").status_code == 202


def test_openapi_describes_every_route_with_its_errors(world: World) -> None:
    paths = world.client.get("/openapi.json").json()["paths"]
    operations = [op for path in paths.values() for op in path.values()]
    ids = [op["operationId"] for op in operations]
    assert len(ids) == len(set(ids))
    assert all(op.get("description") for op in operations)
    assert "404" in paths["/v1/jobs/{job_id}"]["get"]["responses"]
