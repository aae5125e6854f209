"""The status, the error and the events of fine-tuning jobs."""

import pytest

from tests.support.openai_requests import JOBS, change, create, get, status
from tests.support.seeds import write_models_file
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def job(world: World) -> str:
    write_models_file(world)
    return str(create(world)["id"])


def pause(world: World, job: str) -> None:
    worker = world.start(job)
    assert status(world, job) == "running"
    change(world, job, "pause")
    world.tick()
    worker.end("preempted", step=0)
    world.tick()
    assert status(world, job) == "paused"


class TestStatus:
    def test_resumed_job_is_queued_until_a_worker_runs(self, world: World, job: str) -> None:
        pause(world, job)
        assert change(world, job, "resume") == "queued"
        for expected in ("queued", "pending"):
            world.tick()
            assert (world.status(job), status(world, job)) == (expected, "queued")
        world.start(job)
        assert status(world, job) == "running"

    def test_job_that_was_interrupted_after_a_pause_is_running(self, world: World, job: str) -> None:
        pause(world, job)
        change(world, job, "resume")
        world.tick()
        world.start(job).end("node_failure")
        world.tick()
        assert (world.status(job), status(world, job)) == ("queued", "running")

    def test_job_that_was_resumed_before_it_paused_is_running(self, world: World, job: str) -> None:
        worker = world.start(job)
        change(world, job, "pause")
        assert change(world, job, "resume") == "running"
        worker.end("node_failure")
        world.tick()
        assert (world.status(job), status(world, job)) == ("queued", "running")

    def test_retried_job_is_queued_until_a_worker_runs(self, world: World, job: str) -> None:
        world.start(job).end("rejected", failure={"type": "RefusedError", "message": "no"})
        world.tick()
        assert world.client.post(f"/v1/jobs/{job}/retry").status_code == 202
        for expected in ("queued", "pending"):
            assert (world.status(job), status(world, job)) == (expected, "queued")
            world.tick()
        world.start(job)
        assert status(world, job) == "running"

    def test_job_that_paused_at_its_step_is_queued_when_resumed(self, world: World, job: str) -> None:
        world.start(job).end("paused", step=0)
        world.tick(2)
        assert status(world, job) == "paused"
        change(world, job, "resume")
        world.tick(2)
        assert status(world, job) == "queued"


class TestTerms:
    def test_error_about_the_file_has_the_request_s_terms_and_who_can_help(self, world: World, job: str) -> None:
        file = get(world, f"fine_tuning/jobs/{job}")["training_file"]
        problem = f"data.id: file {file} holds nothing to learn: all 40 examples are longer than 8 tokens"
        failure = {"type": "RefusedError", "message": problem, "hint": "Set data.max_length to a larger value."}
        world.start(job).end("rejected", failure=failure)
        world.tick()
        error = get(world, f"fine_tuning/jobs/{job}")["error"]
        assert (error["code"], error["param"]) == ("invalid_training_file", "training_file")
        assert error["message"] == (
            f"training_file: file {file} holds nothing to learn: all 40 examples are longer than 8 tokens. Set "
            "data.max_length to a larger value. An administrator sets fields of `data` in the model's `spec` in "
            "models.yaml."
        )

    def test_event_about_a_file_has_the_request_s_terms(self, world: World, job: str) -> None:
        worker = world.start(job)
        event = {"sequence": 1, "type": "data_truncated", "message": "data.eval_id: 1 is longer", "level": "warning"}
        event["time"] = world.clock().isoformat()
        answer = worker.post("events", {"execution": 1, "events": [event]})
        assert answer.status_code == 200, answer.text
        messages = [one["message"] for one in get(world, f"fine_tuning/jobs/{job}/events")["data"]]
        assert "validation_file: 1 is longer" in messages


class TestErrors:
    def test_types_and_code_are_those_of_openai_s_api(self, world: World, job: str) -> None:
        refused = world.new_client(None).get(f"{JOBS}/{job}")
        world.start(job).end("completed")
        world.tick()
        ended = world.client.post(f"{JOBS}/{job}/cancel")
        unknown = world.client.get(f"{JOBS}/job_nope")
        errors = [(answer.status_code, answer.json()["error"]) for answer in (refused, ended, unknown)]
        assert [status for status, _ in errors] == [401, 400, 404]
        assert {error["type"] for _, error in errors} == {"invalid_request_error"}
        assert errors[0][1]["code"] == "invalid_api_key"
