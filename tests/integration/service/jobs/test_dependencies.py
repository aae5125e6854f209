"""Jobs that wait for others: `after` of a spec."""

from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from service.db.models import Job
from service.reconciler.submission.pool import SubmitPool
from tests.support.wait import wait_until
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

BOTH = pytest.mark.databases("sqlite", "postgres")
UNKNOWN = "job_" + "0" * 26


def condition(world: World, job: str) -> tuple[str, str] | None:
    """The code of the job's condition and what it names."""
    stated = world.job(job)["condition"]
    return (stated["code"], stated["data"]["jobs"]) if stated else None


def submitted(world: World) -> list[str]:
    return [plan.folder.parts[-3] for plan in world.scheduler.submitted]


def end(world: World, job: str, reason: str = "completed") -> None:
    """Start a job and let it end."""
    failure = {"type": "ValueError", "message": "bad"} if reason == "error" else None
    world.start(job).end(reason, step=20, failure=failure)
    world.tick()


def fail(world: World) -> str:
    """Return a job that has failed."""
    job = world.submit(restart={"max_retries": 0})
    end(world, job, "error")
    assert world.status(job) == "failed"
    return job


def statuses(world: World, job: str) -> list[str]:
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200&order=asc").json()["data"]
    return [event["message"] for event in events if event["type"] == "status"]


@BOTH
def test_a_chain_starts_job_by_job(world: World) -> None:
    first = world.submit()
    second = world.submit(after=[first])
    third = world.submit(after=[second])
    world.tick(2)
    assert submitted(world) == [first]
    listed = world.client.get("/v1/jobs", params={"where": f'after ~ "{first}"'}).json()["data"]
    assert [each["id"] for each in listed] == [second]
    assert condition(world, second) == ("after", f"{first} to succeed")
    assert world.job(second)["status_message"] == f"Waiting for {first} to succeed, as `after` of the spec requests."
    for job, rest in ((first, [second]), (second, [third]), (third, [])):
        end(world, job)
        assert world.status(job) == "succeeded"
        world.tick()
        assert submitted(world)[-1:] == rest or not rest
    assert submitted(world) == [first, second, third]
    assert statuses(world, second)[1:4] == [
        f"Waiting for {first} to succeed, as `after` of the spec requests.",
        "Waiting to be submitted to the scheduler.",
        "Submitting to the scheduler (local).",
    ]


def test_a_job_waits_for_the_success_of_each_and_goes_on_after_a_retry(world: World) -> None:
    first = fail(world)
    second = world.submit()
    third = world.submit(after=[first, second])
    world.tick()
    assert condition(world, third) == ("after_failed", f"{first} failed")
    newest = world.client.get(f"/v1/jobs/{third}/events").json()["data"][0]
    assert (newest["level"], newest["data"]["condition"]["code"]) == ("warning", "after_failed")
    assert f"`trainyard retry {first}`" in world.job(third)["status_message"]
    end(world, second)
    world.tick()
    assert condition(world, third) == ("after_failed", f"{first} failed")
    assert world.client.post(f"/v1/jobs/{first}/retry").status_code == 202
    world.tick()
    assert condition(world, third) == ("after", f"{first} to succeed")
    end(world, first)
    world.tick()
    assert submitted(world)[-1] == third


@pytest.mark.parametrize("ends", ["succeeded", "failed", "cancelled"])
def test_any_end_permits_the_start(world: World, ends: str) -> None:
    first = world.submit(restart={"max_retries": 0})
    second = world.submit(after=[f"{first}:ended"])
    world.tick()
    assert condition(world, second) == ("after", f"{first} to end")
    if ends == "cancelled":
        world.client.post(f"/v1/jobs/{first}/cancel")
        world.scheduler.set_states("ended")
        world.tick(2)
    else:
        end(world, first, "completed" if ends == "succeeded" else "error")
    assert world.status(first) == ends
    world.tick()
    assert submitted(world) == [first, second]


def test_a_cancelled_prerequisite_holds_the_job_back(world: World) -> None:
    first = world.submit()
    second = world.submit(after=[first])
    world.client.post(f"/v1/jobs/{first}/cancel")
    world.tick(2)
    assert condition(world, second) == ("after_failed", f"{first} was cancelled")
    assert world.client.post(f"/v1/jobs/{second}/cancel").status_code == 202
    world.tick()
    assert world.status(second) == "cancelled"
    assert submitted(world) == []


def test_a_paused_or_retried_job_still_waits(world: World) -> None:
    first = world.submit()
    second = world.submit(after=[first])
    world.tick()
    world.client.post(f"/v1/jobs/{second}/pause")
    world.tick()
    assert (world.status(second), condition(world, second)) == ("paused", None)
    world.client.post(f"/v1/jobs/{second}/resume")
    world.tick(2)
    assert condition(world, second) == ("after", f"{first} to succeed")
    world.client.post(f"/v1/jobs/{second}/cancel")
    world.tick()
    world.client.post(f"/v1/jobs/{second}/retry")
    world.tick()
    assert (world.status(second), condition(world, second)) == ("queued", ("after", f"{first} to succeed"))
    assert submitted(world) == [first]


def test_a_continuation_waits_while_a_prerequisite_runs_again(world: World) -> None:
    first = fail(world)
    second = world.submit(after=[f"{first}:ended"])
    worker = world.start(second)
    world.client.post(f"/v1/jobs/{first}/retry")
    assert worker.finish("preempted", step=5).status_code == 200
    world.scheduler.set_states("ended")
    world.tick(2)
    assert (world.status(first), world.status(second)) == ("pending", "queued")
    assert condition(world, second) == ("after", f"{first} to end")
    end(world, first)
    world.tick()
    assert submitted(world) == [first, second, first, second]


def test_a_restarted_service_waits_on(world: World) -> None:
    first = world.submit()
    second = world.submit(after=[first])
    world.tick()
    world.reconciler = world.new_reconciler("two")
    world.clock.advance(60)
    world.tick(2)
    assert submitted(world) == [first]
    end(world, first)
    world.reconciler = world.new_reconciler("three")
    world.clock.advance(60)
    world.tick()
    assert submitted(world) == [first, second]


@pytest.mark.parametrize(
    ("fails", "after", "starts"), [(False, "{job}", True), (True, "{job}:ended", True), (True, "{job}", False)]
)
def test_a_deleted_prerequisite_counts_as_it_ended(world: World, fails: bool, after: str, starts: bool) -> None:
    blocking = world.submit()
    job = world.submit(restart={"max_retries": 0})
    second = world.submit(after=[after.format(job=job), blocking])
    end(world, job, "error" if fails else "completed")
    assert world.client.delete(f"/v1/jobs/{job}").status_code == 204
    deleted = ("after_deleted", f"{job} was deleted after it had failed")
    for _ in range(2):  # before its rows are deleted, and afterwards
        world.tick()
        assert condition(world, second) == (("after", f"{blocking} to succeed") if starts else deleted)
        world.run_maintenance()
    end(world, blocking)
    world.tick()
    assert (submitted(world)[-1] == second) == starts


def test_an_archived_prerequisite_counts(world: World) -> None:
    first = world.submit()
    second = world.submit(after=[first])
    end(world, first)
    world.client.patch(f"/v1/jobs/{first}", json={"archived": True})
    world.tick()
    assert submitted(world) == [first, second]


@pytest.mark.parametrize(
    ("after", "param", "message"),
    [
        ([UNKNOWN], "after.0", "there is no job"),
        (["{job}", UNKNOWN], "after.1", "there is no job"),
        (["{deleted}"], "after.0", "there is no job"),
        (["{job}", "{job}:ended"], "after.1", "a second time"),
        (["{job}:started"], "after.0", "must be the id of a job"),
        (["parity"], "after.0", "must be the id of a job"),
        ("{job}", "after", "must be a list"),
        ([f"job_{number:026}" for number in range(33)], "after", "at most 32"),
    ],
)
def test_a_job_that_cannot_wait_is_refused(world: World, after: Any, param: str, message: str) -> None:
    names = {"job": world.submit(), "deleted": fail(world)}
    world.client.delete(f"/v1/jobs/{names['deleted']}")
    filled = after.format(**names) if isinstance(after, str) else [each.format(**names) for each in after]
    answer = world.client.post("/v1/jobs", json={**SPEC, "after": filled})
    assert answer.status_code == 422, answer.text
    (problem,) = answer.json()["problems"]
    assert problem["param"] == param
    assert message in problem["message"]


def test_a_repeated_request_is_answered_after_a_deletion(world: World) -> None:
    job = fail(world)
    spec, key = {**SPEC, "after": [job]}, {"Idempotency-Key": "one"}
    first = world.client.post("/v1/jobs", json=spec, headers=key)
    assert first.status_code == 201
    world.client.delete(f"/v1/jobs/{job}")
    second = world.client.post("/v1/jobs", json=spec, headers=key)
    assert (second.status_code, second.json()) == (201, first.json())


def test_a_fork_of_an_unfinished_prerequisite_names_the_step(world: World) -> None:
    source = world.submit()
    assert world.start(source).checkpoint(10).status_code == 200
    checkpoint = world.settings.runs / source / "checkpoints" / "step-10"
    checkpoint.mkdir(parents=True, exist_ok=True)
    refused = world.client.post("/v1/jobs", json={**SPEC, "after": [source], "resume_from": source})
    assert refused.status_code == 422, refused.text
    assert f"Give the step, as in {source}:" in refused.json()["problems"][0]["message"]


def test_waiting_members_of_a_sweep_do_not_count_as_running(world: World) -> None:
    job = world.submit()
    body = {"spec": {**SPEC, "after": [job]}, "grid": {"seed": [1, 2, 3]}, "max_parallel": 2}
    answer = world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 201, answer.text
    members = [member["job_id"] for member in answer.json()["members"]]
    world.tick()
    assert submitted(world) == [job]
    assert {condition(world, member) for member in members} == {("after", f"{job} to succeed")}
    end(world, job)
    world.tick()
    assert submitted(world) == [job, *members[:2]]
    unknown = {**body, "spec": {**SPEC, "after": [UNKNOWN]}}
    assert world.client.post("/v1/sweeps", json=unknown).status_code == 422


@pytest.mark.databases("postgres")
def test_later_trials_of_a_search_know_how_a_deleted_job_ended(world: World) -> None:
    job = world.submit(restart={"max_retries": 0})
    search = {"algorithm": "random", "space": {"optimizer.lr": "log:1e-4:1e-1"}, "max_trials": 3}
    body = {"spec": {**SPEC, "after": [job]}, "search": search, "max_parallel": 2}
    answer = world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 201, answer.text
    world.search(3)
    end(world, job, "error")
    world.client.delete(f"/v1/jobs/{job}")
    world.run_maintenance()
    sweep = f"/v1/sweeps/{answer.json()['id']}"
    world.client.post(f"/v1/jobs/{world.client.get(sweep).json()['members'][0]['job_id']}/cancel")
    world.tick()
    world.search(3)
    world.tick()
    members = [member["job_id"] for member in world.client.get(sweep).json()["members"]]
    assert [condition(world, member) for member in members[1:]] == [
        ("after_deleted", f"{job} was deleted after it had failed")
    ] * 2
    assert submitted(world) == [job]


def test_waiting_jobs_do_not_keep_others_from_the_scheduler(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.submit()
    for _ in range(3):
        world.submit(after=[first])
    other = world.submit()
    monkeypatch.setattr("service.reconciler.reconciler._QUEUED_PER_TICK", 2)
    world.reconciler = world.new_reconciler("two", SubmitPool(threads=1))
    wait_until(lambda: world.tick() or len(submitted(world)) == 2, 20, "both submissions")
    assert sorted(submitted(world)) == [first, other]


@pytest.mark.databases("postgres")
def test_a_job_goes_on_if_nothing_is_known_of_its_prerequisite(world: World) -> None:
    first = world.submit()
    second = world.submit(after=[first])
    with world.database.write() as session:
        session.execute(sa.delete(Job).where(Job.id == first))
    world.tick()
    assert submitted(world) == [second]


def test_a_job_waits_for_one_of_another_user(world: World) -> None:
    ada, ben = world.new_user("user", "ada"), world.new_user("user", "ben")

    def submit(client: TestClient, **changes: Any) -> str:
        answer = client.post("/v1/jobs", json={**SPEC, "restart": {"max_retries": 0}, **changes})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    first = submit(ada)
    second = submit(ben, after=[first])
    world.tick()
    assert condition(world, second) == ("after", f"{first} of ada to succeed")
    end(world, first, "error")
    world.tick()
    assert condition(world, second) == ("after_failed", f"{first} of ada failed")
    assert ben.post(f"/v1/jobs/{first}/retry").status_code == 403
    assert ada.post(f"/v1/jobs/{first}/retry").status_code == 202
    assert ada.delete(f"/v1/jobs/{second}").status_code == 403
    end(world, first)
    world.tick(2)
    assert submitted(world) == [first, first, second]
