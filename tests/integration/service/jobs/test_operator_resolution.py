"""Resolution of jobs that are lost or whose submission was not confirmed."""

from typing import Any

import pytest

from service.scheduler.base import Ambiguous
from tests.integration.service.reconciler.test_reconciler import types
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

ADOPT = {"action": "adopt", "scheduler_id": "77"}
RESUBMIT = {"action": "resubmit"}
GIVE_UP = {"action": "give_up"}


def resolve(world: World, job: str, body: dict[str, Any]) -> Any:
    return world.client.post(f"/v1/jobs/{job}/resolve", json=body)


@pytest.fixture
def slurm(world: World) -> World:
    world.scheduler.name = "slurm"
    world.reconciler = world.new_reconciler("one")
    return world


def ambiguous(world: World) -> str:
    job = world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    world.scheduler.outcome = None
    assert world.status(job) == "submitting"
    return job


def lost(world: World) -> str:
    job = world.submit()
    world.start(job)
    world.clock.advance(60)
    world.scheduler.set_states("absent")
    world.tick()
    assert world.status(job) == "lost"
    return job


class TestAdopt:
    def test_unconfirmed_submission_is_adopted_by_id(self, slurm: World) -> None:
        job = ambiguous(slurm)
        answer = resolve(slurm, job, ADOPT)
        assert (answer.status_code, answer.json()["status"]) == (202, "pending")
        assert answer.json()["attempt"]["scheduler_id"] == "77"
        slurm.tick()
        assert slurm.scheduler.submitted == [], "it is not submitted again"

    @pytest.mark.databases("sqlite", "postgres")
    def test_lost_run_becomes_running(self, slurm: World) -> None:
        job = lost(slurm)
        assert resolve(slurm, job, ADOPT).json()["status"] == "running"

    def test_adopted_job_with_a_pending_cancel_is_cancelled(self, slurm: World) -> None:
        job = ambiguous(slurm)
        slurm.client.post(f"/v1/jobs/{job}/cancel")
        assert resolve(slurm, job, ADOPT).status_code == 202
        slurm.scheduler.states = {}
        slurm.tick(3)
        assert slurm.status(job) == "cancelled"

    def test_local_jobs_cannot_be_adopted(self, world: World) -> None:
        answer = resolve(world, lost(world), ADOPT)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"] == "only Slurm jobs can be adopted; use `resubmit` or `give_up`"

    @pytest.mark.parametrize("body", [{"action": "adopt"}, RESUBMIT | {"scheduler_id": "7"}, {"action": "hope"}, {}])
    def test_malformed_requests_are_rejected(self, body: dict[str, Any], slurm: World) -> None:
        assert resolve(slurm, ambiguous(slurm), body).status_code == 422

    @pytest.mark.parametrize("number", ["0", "7; rm", "", "123456789012", "7_1"])
    def test_malformed_scheduler_ids_are_rejected(self, number: str, slurm: World) -> None:
        answer = resolve(slurm, ambiguous(slurm), {"action": "adopt", "scheduler_id": number})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "scheduler_id")


class TestResubmit:
    @pytest.mark.parametrize("state", [ambiguous, lost])
    def test_resubmit_starts_a_next_attempt(self, state: Any, slurm: World) -> None:
        job = state(slurm)
        before = slurm.job(job)["attempt"]["id"]
        assert resolve(slurm, job, RESUBMIT).json()["status"] == "queued"
        slurm.tick()
        after = slurm.job(job)
        assert (after["status"], after["attempt"]["number"]) == ("pending", 2)
        assert after["attempt"]["id"] != before

    def test_resolved_attempt_can_no_longer_claim(self, slurm: World) -> None:
        job = ambiguous(slurm)
        worker = slurm.worker(job)
        resolve(slurm, job, RESUBMIT)
        slurm.tick()
        assert worker.claim().status_code == 409

    def test_resolved_run_that_is_alive_must_stop(self, slurm: World) -> None:
        job = lost(slurm)
        worker = slurm.worker(job)
        resolve(slurm, job, RESUBMIT)
        slurm.tick()
        assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "cancel"

    def test_job_with_a_pending_cancel_is_not_resubmitted(self, slurm: World) -> None:
        job = ambiguous(slurm)
        slurm.client.post(f"/v1/jobs/{job}/cancel")
        answer = resolve(slurm, job, RESUBMIT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_cancelling")
        assert "resolved" not in types(slurm, job), "what was refused is not recorded"


class TestGiveUp:
    def test_lost_run_is_given_up(self, slurm: World) -> None:
        job = lost(slurm)
        shown = resolve(slurm, job, GIVE_UP).json()
        assert (shown["status"], shown["status_reason"]) == ("failed", "node_failure")
        assert (shown["status_message"], shown["attempt"]["exit_reason"]) == ("Given up by admin.", "given_up")

    def test_unconfirmed_submission_is_given_up(self, slurm: World) -> None:
        shown = resolve(slurm, ambiguous(slurm), GIVE_UP).json()
        assert (shown["status"], shown["status_reason"]) == ("failed", "rejected")

    @pytest.mark.parametrize("state", [ambiguous, lost])
    def test_given_up_job_with_a_pending_cancel_is_cancelled(self, state: Any, slurm: World) -> None:
        job = state(slurm)
        slurm.client.post(f"/v1/jobs/{job}/cancel")
        shown = resolve(slurm, job, GIVE_UP).json()
        assert (shown["status"], shown["status_reason"]) == ("cancelled", "user_cancelled")


@pytest.mark.parametrize("body", [ADOPT, RESUBMIT, GIVE_UP])
class TestEveryAction:
    @pytest.mark.databases("sqlite", "postgres")
    def test_resolution_is_recorded_as_an_event(self, body: dict[str, Any], slurm: World) -> None:
        job = ambiguous(slurm)
        resolve(slurm, job, body)
        events = slurm.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
        (event,) = [event for event in events if event["type"] == "resolved"]
        assert (event["data"]["by"], event["data"]["action"]) == ("admin", body["action"])
        assert event["message"].startswith("Resolved by admin: ")

    def test_repeated_resolution_changes_nothing(self, body: dict[str, Any], slurm: World) -> None:
        job = ambiguous(slurm)
        first = resolve(slurm, job, body)
        again = resolve(slurm, job, body)
        assert (again.status_code, again.json()["status"]) == (202, first.json()["status"])
        assert types(slurm, job).count("resolved") == 1

    def test_unambiguous_job_is_a_conflict(self, body: dict[str, Any], slurm: World) -> None:
        job = slurm.submit()
        for status in ("queued", "pending"):
            assert slurm.status(job) == status
            answer = resolve(slurm, job, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "nothing_to_resolve")
            slurm.tick()

    def test_submission_in_flight_is_a_conflict(self, body: dict[str, Any], slurm: World) -> None:
        job = slurm.submit()
        slurm.scheduler.lose_answers = True
        with pytest.raises(KeyboardInterrupt):
            slurm.tick()
        answer = resolve(slurm, job, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "submission_in_flight")

    def test_only_an_administrator_can_resolve(self, body: dict[str, Any], slurm: World) -> None:
        job = ambiguous(slurm)
        user = slurm.new_user("user", "ada")
        assert user.post(f"/v1/jobs/{job}/resolve", json=body).status_code == 403


class TestAllLost:
    def test_each_lost_job_is_resolved_once(self, world: World) -> None:
        jobs = [world.submit() for _ in range(3)]
        for job in jobs:
            world.start(job)
        running = world.submit()
        world.clock.advance(60)
        world.scheduler.set_states("absent")
        world.tick()
        world.start(running)
        world.client.post(f"/v1/jobs/{jobs[2]}/cancel")
        answer = world.client.post("/v1/lost-jobs/resolve", json=RESUBMIT)
        results = {row["job_id"]: (row["resolved"], row["status"]) for row in answer.json()["data"]}
        assert results == {jobs[0]: (True, "queued"), jobs[1]: (True, "queued"), jobs[2]: (False, None)}
        assert "resolved" in types(world, jobs[0])
        assert world.status(running) == "running"
        again = world.client.post("/v1/lost-jobs/resolve", json=RESUBMIT)
        assert [row["job_id"] for row in again.json()["data"]] == [jobs[2]]
        entries = [e for e in world.client.get("/v1/audit").json()["data"] if e["action"] == "resolve_lost_jobs"]
        assert entries[1]["detail"] == {"action": "resubmit", "jobs": jobs, "count": 3}

    def test_the_rest_is_announced(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.api.routes.jobs._MAX_RESOLVED", 1)
        jobs = [lost(world) for _ in range(2)]
        pages = [world.client.post("/v1/lost-jobs/resolve", json=GIVE_UP).json() for _ in range(3)]
        assert [page["has_more"] for page in pages] == [True, False, False]
        assert [row["job_id"] for page in pages for row in page["data"]] == jobs

    def test_only_administrators_may_do_it(self, world: World) -> None:
        assert world.new_user("user", "ada").post("/v1/lost-jobs/resolve", json=RESUBMIT).status_code == 403
