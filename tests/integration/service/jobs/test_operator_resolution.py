"""An operator's word about a job that is lost or whose submission had no clear answer."""

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
    def test_an_unanswered_submission_is_watched_under_that_id(self, slurm: World) -> None:
        job = ambiguous(slurm)
        answer = resolve(slurm, job, ADOPT)
        assert (answer.status_code, answer.json()["status"]) == (202, "pending")
        assert answer.json()["attempt"]["scheduler_id"] == "77"
        slurm.tick()
        assert slurm.scheduler.submitted == [], "it is not submitted again"

    @pytest.mark.databases("sqlite", "postgres")
    def test_a_lost_run_runs_again(self, slurm: World) -> None:
        job = lost(slurm)
        assert resolve(slurm, job, ADOPT).json()["status"] == "running"

    def test_one_that_is_to_be_cancelled_is_cancelled_under_that_id(self, slurm: World) -> None:
        job = ambiguous(slurm)
        slurm.client.post(f"/v1/jobs/{job}/cancel")
        assert resolve(slurm, job, ADOPT).status_code == 202
        slurm.scheduler.states = {}
        slurm.tick(3)
        assert slurm.status(job) == "cancelled"

    def test_the_local_queue_has_nothing_to_adopt(self, world: World) -> None:
        answer = resolve(world, lost(world), ADOPT)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"] == "only jobs of Slurm can be adopted; resubmit it or give it up"

    @pytest.mark.parametrize("body", [{"action": "adopt"}, RESUBMIT | {"scheduler_id": "7"}, {"action": "hope"}, {}])
    def test_a_word_that_does_not_make_sense(self, body: dict[str, Any], slurm: World) -> None:
        assert resolve(slurm, ambiguous(slurm), body).status_code == 422

    @pytest.mark.parametrize("number", ["0", "7; rm", "", "123456789012", "7_1"])
    def test_what_is_no_id(self, number: str, slurm: World) -> None:
        answer = resolve(slurm, ambiguous(slurm), {"action": "adopt", "scheduler_id": number})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "scheduler_id")


class TestResubmit:
    @pytest.mark.parametrize("state", [ambiguous, lost])
    def test_is_a_next_attempt(self, state: Any, slurm: World) -> None:
        job = state(slurm)
        before = slurm.job(job)["attempt"]["id"]
        assert resolve(slurm, job, RESUBMIT).json()["status"] == "queued"
        slurm.tick()
        after = slurm.job(job)
        assert (after["status"], after["attempt"]["number"]) == ("pending", 2)
        assert after["attempt"]["id"] != before

    def test_the_former_attempt_can_no_longer_claim(self, slurm: World) -> None:
        job = ambiguous(slurm)
        worker = slurm.worker(job)
        resolve(slurm, job, RESUBMIT)
        slurm.tick()
        assert worker.claim().status_code == 409

    def test_a_former_run_that_lives_after_all_is_told_to_stop(self, slurm: World) -> None:
        job = lost(slurm)
        worker = slurm.worker(job)
        resolve(slurm, job, RESUBMIT)
        slurm.tick()
        assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "cancel"

    def test_one_that_is_to_be_cancelled_is_not_submitted_again(self, slurm: World) -> None:
        job = ambiguous(slurm)
        slurm.client.post(f"/v1/jobs/{job}/cancel")
        answer = resolve(slurm, job, RESUBMIT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_wanted")
        assert "resolved" not in types(slurm, job), "what was refused is not recorded"


class TestGiveUp:
    def test_a_lost_run(self, slurm: World) -> None:
        job = lost(slurm)
        shown = resolve(slurm, job, GIVE_UP).json()
        assert (shown["status"], shown["status_reason"]) == ("failed", "node_failure")
        assert (shown["status_message"], shown["attempt"]["exit_reason"]) == ("given up by admin", "given_up")

    def test_an_unanswered_submission(self, slurm: World) -> None:
        shown = resolve(slurm, ambiguous(slurm), GIVE_UP).json()
        assert (shown["status"], shown["status_reason"]) == ("failed", "rejected")

    @pytest.mark.parametrize("state", [ambiguous, lost])
    def test_one_that_is_to_be_cancelled_is_cancelled(self, state: Any, slurm: World) -> None:
        job = state(slurm)
        slurm.client.post(f"/v1/jobs/{job}/cancel")
        shown = resolve(slurm, job, GIVE_UP).json()
        assert (shown["status"], shown["status_reason"]) == ("cancelled", "user_cancelled")


@pytest.mark.parametrize("body", [ADOPT, RESUBMIT, GIVE_UP])
class TestAll:
    @pytest.mark.databases("sqlite", "postgres")
    def test_who_said_what_is_an_event(self, body: dict[str, Any], slurm: World) -> None:
        job = ambiguous(slurm)
        resolve(slurm, job, body)
        events = slurm.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
        (event,) = [event for event in events if event["type"] == "resolved"]
        assert (event["data"]["by"], event["data"]["action"]) == ("admin", body["action"])
        assert event["message"].startswith("admin says: ")

    def test_said_twice_is_said_once(self, body: dict[str, Any], slurm: World) -> None:
        job = ambiguous(slurm)
        first = resolve(slurm, job, body)
        again = resolve(slurm, job, body)
        assert (again.status_code, again.json()["status"]) == (202, first.json()["status"])
        assert types(slurm, job).count("resolved") == 1

    def test_a_job_of_which_all_is_known_is_a_409(self, body: dict[str, Any], slurm: World) -> None:
        job = slurm.submit()
        for status in ("queued", "pending"):
            assert slurm.status(job) == status
            answer = resolve(slurm, job, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "nothing_to_resolve")
            slurm.tick()

    def test_while_sbatch_may_still_be_asked_nobody_knows(self, body: dict[str, Any], slurm: World) -> None:
        job = slurm.submit()
        slurm.scheduler.lose_answers = True
        with pytest.raises(KeyboardInterrupt):
            slurm.tick()
        answer = resolve(slurm, job, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "still_asking")

    def test_only_an_administrator_knows(self, body: dict[str, Any], slurm: World) -> None:
        job = ambiguous(slurm)
        user = slurm.new_user("user", "ada")
        assert user.post(f"/v1/jobs/{job}/resolve", json=body).status_code == 403
