"""What runs or lies on disk without a job is listed, and cancelled or adopted when an administrator requests it."""

import json
import shutil
from typing import Any

import pytest

from service.reconciler import orphans as orphan_module
from service.scheduler.base import Observation
from tests.support.world import SPEC, World
from trainyard.contract.layout import write_atomic
from trainyard.contract.wire.reports import Claim

pytestmark = pytest.mark.databases("sqlite")

FOREIGN = "ty-main-00000000000000aa"


def orphans(world: World) -> list[dict[str, Any]]:
    answer = world.client.get("/v1/orphans")
    assert answer.status_code == 200, answer.text
    listed: list[dict[str, Any]] = answer.json()["data"]
    return listed


def forget(world: World, job: str) -> None:
    """Delete a job from the database alone, as a restore of an older one does."""
    with world.database.write() as session:
        from service.db.models import Job
        from service.reconciler.repository import find_job

        row = find_job(session, job)
        assert isinstance(row, Job)
        session.delete(row)
    world.reconciler = world.new_reconciler("restored")
    world.clock.advance(60)


def running_orphan(world: World, client: Any = None) -> str:
    answer = (client or world.client).post("/v1/jobs", json=SPEC)
    assert answer.status_code == 201, answer.text
    job = str(answer.json()["id"])
    worker = world.start(job)
    claim = Claim(nonce="nonce-0001", host="node1", pid=7)
    write_atomic(world.folder(job).claim, claim.model_dump_json())
    assert worker.execution == 1
    forget(world, job)
    world.tick()
    return job


def test_jobs_of_the_database_are_no_orphans(world: World) -> None:
    world.start(world.submit())
    world.reconciler = world.new_reconciler("again")
    world.clock.advance(60)
    world.tick()
    assert orphans(world) == []
    assert 'trainyard_orphans{where="queue"} 0.0' in world.client.get("/metrics").text


def test_running_job_without_a_row_is_listed_with_its_folder(world: World) -> None:
    job = running_orphan(world)
    (orphan,) = orphans(world)
    assert (orphan["id"], orphan["name"], orphan["state"]) == (job, "parity", "running")
    assert orphan["scheduler_id"] == f"id-{orphan['tag']}"
    assert orphan["folder"] == str(world.settings.runs / job)
    assert 'trainyard_orphans{where="queue"} 1.0' in world.client.get("/metrics").text


def test_queue_entry_without_a_folder_is_listed_by_its_tag(world: World) -> None:
    world.scheduler.states = {FOREIGN: Observation("pending"), "ty-other-00000000000000bb": Observation("running")}
    world.tick()
    (orphan,) = orphans(world)
    assert (orphan["id"], orphan["folder"], orphan["state"]) == (FOREIGN, None, "pending")
    assert world.scheduler.cancelled == [], "an orphan is never cancelled by itself"


def test_orphan_is_cancelled_when_requested(world: World) -> None:
    world.scheduler.states = {FOREIGN: Observation("running")}
    world.tick()
    answer = world.client.post(f"/v1/orphans/{FOREIGN}/resolve", json={"action": "cancel"})
    assert (answer.status_code, answer.json()["requested"]) == (202, "cancel")
    world.tick()
    assert FOREIGN in world.scheduler.cancelled
    world.scheduler.states = {}
    world.clock.advance(20)
    world.tick()
    assert orphans(world) == []


def test_running_orphan_is_adopted_with_its_attempt(world: World) -> None:
    job = running_orphan(world)
    answer = world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt"})
    assert answer.status_code == 202
    submitted = len(world.scheduler.submitted)
    world.tick(3)
    assert (world.status(job), orphans(world)) == ("running", [])
    assert world.job(job)["created_by"] == "admin"
    worker = world.worker(job)
    assert worker.metrics([("a", 1, 1.0)]).status_code == 200
    worker.end("completed")
    world.tick()
    assert (world.status(job), len(world.scheduler.submitted)) == ("succeeded", submitted)


def test_interrupted_adoption_stores_no_job_without_its_attempt(world: World) -> None:
    job = running_orphan(world)
    world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt"})
    world.fail_at("adoption.before-commit")
    with pytest.raises(SystemExit):
        world.tick()
    assert world.client.get(f"/v1/jobs/{job}").status_code == 404
    world.tick(3)
    assert (world.status(job), orphans(world)) == ("running", [])


def test_orphan_is_adopted_for_the_user_whom_an_administrator_names(world: World) -> None:
    alice = world.new_user("user", "alice")
    job = running_orphan(world, alice)
    assert [orphan["created_by"] for orphan in orphans(world)] == ["alice"]
    world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt", "owner": "alice"})
    world.tick(3)
    assert (world.status(job), world.job(job)["created_by"]) == ("running", "alice")
    assert alice.post(f"/v1/jobs/{job}/cancel").status_code == 202


@pytest.mark.parametrize("forged", ['{"created_by": "alice"}', '{"created_by": "a\\u0000"}', "[]", "x" * 5000])
def test_forged_creator_grants_nothing(world: World, forged: str) -> None:
    world.new_user("user", "alice")
    job = running_orphan(world)
    (world.settings.runs / job / "created_by.json").write_text(forged)
    world.clock.advance(3600)
    world.tick()
    shown = "alice" if "alice" in forged else None
    assert [orphan["created_by"] for orphan in orphans(world)] == [shown]
    world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt"})
    world.tick(3)
    assert world.job(job)["created_by"] == "admin"


@pytest.mark.parametrize("owner", ["nobody", "eve"])
def test_owner_must_be_a_user_who_may_submit_jobs(world: World, owner: str) -> None:
    world.new_user("viewer", "eve")
    job = running_orphan(world)
    answer = world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt", "owner": owner})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "owner")
    assert [orphan["requested"] for orphan in orphans(world)] == [None]
    refused = world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "cancel", "owner": "admin"})
    assert refused.status_code == 422


def test_folder_without_an_attempt_is_adopted_as_a_paused_job(world: World) -> None:
    job = running_orphan(world)
    world.scheduler.states = {}
    shutil.rmtree(world.settings.runs / job / "attempts")
    world.clock.advance(3600)
    world.tick()
    assert [orphan["state"] for orphan in orphans(world)] == [None]
    world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt"})
    world.tick()
    assert world.status(job) == "paused"
    world.client.post(f"/v1/jobs/{job}/resume")
    world.tick(2)
    assert world.status(job) == "pending"


def test_adopted_job_gets_no_secret_of_its_new_owner(world: World) -> None:
    world.client.put("/v1/secrets/HF_TOKEN", json={"value": "hf_admin"})
    job = running_orphan(world)
    run = world.settings.runs / job
    document = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps({**document, "environment": {"secrets": ["HF_TOKEN"]}}))
    shutil.rmtree(run / "attempts")
    world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt"})
    world.tick()
    shown = world.job(job)
    assert shown["spec"].get("environment", {}).get("secrets", []) == []
    assert "It no longer gets HF_TOKEN" in shown["status_message"]


def test_damaged_spec_is_reported_on_the_orphan(world: World) -> None:
    job = running_orphan(world)
    spec = world.settings.runs / job / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "steps": -1}))
    world.client.post(f"/v1/orphans/{job}/resolve", json={"action": "adopt"})
    world.tick()
    (orphan,) = orphans(world)
    assert (orphan["requested"], orphan["message"]) == (None, "the spec in the run directory cannot be read")


def test_impossible_requests_about_orphans_are_conflicts(world: World) -> None:
    job = running_orphan(world)
    world.scheduler.states = {FOREIGN: Observation("running")}
    world.clock.advance(300)
    world.tick()
    for orphan, action, code in ((FOREIGN, "adopt", "no_run_directory"), (job, "cancel", "not_in_queue")):
        answer = world.client.post(f"/v1/orphans/{orphan}/resolve", json={"action": action})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, code)
    missing = world.client.post("/v1/orphans/ty-x/resolve", json={"action": "cancel"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "orphan_not_found")


def test_orphans_are_for_administrators_alone(world: World) -> None:
    for role in ("user", "viewer"):
        client = world.new_user(role, f"some-{role}")  # type: ignore[arg-type]
        assert client.get("/v1/orphans").status_code == 403


def test_listing_of_orphans_survives_a_scheduler_outage(world: World) -> None:
    running_orphan(world)
    world.scheduler.unavailable = True
    world.clock.advance(300)
    world.tick()
    assert len(orphans(world)) == 1


def forge(world: World, folder_name: str, attempt_id: str | None = None, **changes: Any) -> None:
    """Make a run directory beside those of the jobs, as any program with the service's account can."""
    spec = json.loads(next(world.settings.runs.glob("job_*/spec.json")).read_text())
    folder = world.settings.runs / folder_name
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps({**spec, **changes}))
    if attempt_id is not None:
        current = {"attempt_id": attempt_id, "attempt": 1, "execution": 1}
        (folder / "current.json").write_text(json.dumps(current))


def scan(world: World) -> list[dict[str, Any]]:
    world.clock.advance(3600)
    world.tick()
    return orphans(world)


@pytest.mark.databases("sqlite", "postgres")
def test_text_in_a_forged_folder_does_not_hide_orphans(world: World) -> None:
    job = running_orphan(world)
    forge(world, "job_01aaaaaaaaaaaaaaaaaaaaaaaa", "a" * 256)
    forge(world, "job_01aaaaaaaaaaaaaaaaaaaaaaab", "../../x\n<script>")
    listed = {orphan["id"]: orphan["tag"] for orphan in scan(world)}
    assert listed.pop(job) is not None
    assert listed == {"job_01aaaaaaaaaaaaaaaaaaaaaaaa": None, "job_01aaaaaaaaaaaaaaaaaaaaaaab": None}


def test_folder_that_copies_an_attempt_hides_no_orphan(world: World) -> None:
    job = running_orphan(world)
    tag = str(orphans(world)[0]["tag"])
    forge(world, "job_01aaaaaaaaaaaaaaaaaaaaaaaa", tag.rpartition("-")[2])
    listed = {orphan["id"]: (orphan["scheduler_id"], orphan["folder"]) for orphan in scan(world)}
    assert listed[tag] == (f"id-{tag}", None), "both folders may be its own"
    assert set(listed) == {tag, job, "job_01aaaaaaaaaaaaaaaaaaaaaaaa"}


@pytest.mark.parametrize("name", ["job_7" + "z" * 25, "job_6" + "z" * 25, "job_01" + "i" * 24, "job_7zz.x"])
def test_folder_with_an_impossible_id_is_no_orphan(world: World, name: str) -> None:
    job = running_orphan(world)
    forge(world, name)
    assert [orphan["id"] for orphan in scan(world)] == [job]


def test_many_empty_folders_do_not_hide_orphans(world: World) -> None:
    job = running_orphan(world)
    world.scheduler.states = {}
    for number in range(1100):
        (world.settings.runs / f"job_00{number:024d}").mkdir()
    assert [orphan["id"] for orphan in scan(world)] == [job]


def test_failing_adoption_does_not_delay_other_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = running_orphan(world)
    forge(world, "job_01aaaaaaaaaaaaaaaaaaaaaaaa", name="broken")
    scan(world)
    make = orphan_module._new_job

    def fail_for_one(job_id: str, *arguments: Any) -> Any:
        row = make(job_id, *arguments)
        if job_id != job:
            row.gpus = 2**70
        return row

    monkeypatch.setattr(orphan_module, "_new_job", fail_for_one)
    for orphan in orphans(world):
        world.client.post(f"/v1/orphans/{orphan['id']}/resolve", json={"action": "adopt"})
    world.tick(3)
    assert world.status(job) == "running"
    (broken,) = orphans(world)
    assert (broken["name"], broken["requested"], broken["message"]) == ("broken", None, "a value cannot be stored")
