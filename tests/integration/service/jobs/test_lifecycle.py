"""Pause, resume and retry in each status that allows them."""

from typing import Any

import pytest

from service.scheduler.base import Ambiguous, Observation, Rejected
from tests.support.world import World
from trainyard.contract.layout import write_atomic

pytestmark = pytest.mark.databases("sqlite")


def request_action(world: World, job: str, verb: str, body: Any = None) -> Any:
    return world.client.post(f"/v1/jobs/{job}/{verb}", **({"json": body} if body else {}))


def count_events(world: World, job: str, type_: str) -> int:
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    return sum(event["type"] == type_ for event in events)


def test_queued_job_is_paused_without_being_submitted(world: World) -> None:
    job = world.submit()
    for _ in range(2):
        assert request_action(world, job, "pause").status_code == 202
    world.tick(2)
    assert world.status(job) == "paused"
    assert world.scheduler.submitted == []
    assert count_events(world, job, "pause_requested") == 1
    for _ in range(2):
        assert request_action(world, job, "resume").status_code == 202
    world.tick(2)
    assert world.status(job) == "pending"
    assert count_events(world, job, "resume_requested") == 1


def test_paused_pending_job_releases_its_queue_entry(world: World) -> None:
    job = world.submit()
    world.tick()
    worker = world.worker(job)
    request_action(world, job, "pause")
    assert worker.claim().status_code == 409, "what is being taken back does not begin"
    world.tick()
    assert world.status(job) == "pausing"
    world.scheduler.unavailable = True
    world.tick()
    world.scheduler.unavailable = False
    world.tick()
    assert len(world.scheduler.cancelled) == 2, "requested until it is gone"
    world.scheduler.set_states("ended")
    world.tick()
    job_resource = world.job(job)
    assert (job_resource["status"], job_resource["attempt"]["exit_reason"]) == ("paused", "paused")
    request_action(world, job, "resume")
    world.tick(2)
    assert len(world.scheduler.submitted) == 2


def test_running_job_pauses_by_heartbeat_after_a_checkpoint(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] is None
    request_action(world, job, "pause")
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "pause"
    world.tick()
    assert world.status(job) == "pausing"
    assert world.scheduler.cancelled == [], "the heartbeat carries the request, so the scheduler is not called"
    worker.checkpoint(7)
    worker.end("preempted", step=7)
    world.tick()
    job_resource = world.job(job)
    assert (job_resource["status"], job_resource["status_reason"], job_resource["desired"]) == (
        "paused",
        None,
        "paused",
    )
    assert job_resource["status_message"] == "Paused after step 7. The allocation was released."
    world.tick(5)
    assert len(world.scheduler.submitted) == 1


def test_pause_uses_neither_retries_nor_continuations(world: World) -> None:
    job = world.submit(restart={"max_retries": 1})
    for _ in range(5):
        worker = world.start(job)
        request_action(world, job, "pause")
        world.tick()
        worker.end("preempted", step=0)
        world.tick()
        assert world.status(job) == "paused"
        request_action(world, job, "resume")
        world.tick()
    worker = world.start(job)
    worker.end("error", failure={"type": "ValueError", "message": "bad"})
    world.tick()
    assert world.status(job) == "queued"
    assert "1 left" in world.job(job)["status_message"]


def test_hung_worker_is_cancelled_in_the_scheduler_after_the_deadline(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    request_action(world, job, "pause")
    world.tick()
    for _ in range(29):
        world.clock.advance(19)
        worker.post("heartbeat", {"execution": 1})
        world.tick()
    assert world.scheduler.cancelled == []
    world.clock.advance(30)
    worker.post("heartbeat", {"execution": 1})
    world.tick()
    assert len(world.scheduler.cancelled) == 1
    assert "the scheduler ends it" in world.job(job)["status_message"]
    world.scheduler.set_states("ended")
    world.tick()
    assert world.status(job) == "paused"
    assert "last checkpoint" in world.job(job)["status_message"]


@pytest.mark.databases("postgres")
def test_worker_without_heartbeat_is_stopped_through_the_scheduler(world: World) -> None:
    job = world.submit()
    world.start(job)
    request_action(world, job, "pause")
    world.tick()
    world.clock.advance(50)
    world.tick()
    assert world.scheduler.cancelled == []
    world.clock.advance(15)
    world.tick()
    assert len(world.scheduler.cancelled) == 1


def test_restarted_service_waits_for_heartbeats_before_it_signals(world: World) -> None:
    job = world.submit()
    world.start(job)
    request_action(world, job, "pause")
    world.clock.advance(7200)
    world.reconciler = world.new_reconciler("one")
    world.tick()
    assert world.status(job) == "pausing"
    assert world.scheduler.cancelled == []


def test_pausing_job_that_vanishes_is_paused_after_ten_minutes(world: World) -> None:
    job = world.submit()
    world.start(job)
    request_action(world, job, "pause")
    world.scheduler.states.clear()
    world.tick(2)
    assert world.status(job) == "pausing"
    world.clock.advance(600)
    world.tick()
    assert world.status(job) == "paused"


@pytest.mark.parametrize(
    ("reason", "status"), [("completed", "succeeded"), ("error", "paused"), ("rejected", "failed")]
)
def test_exit_record_decides_the_end_while_pausing(world: World, reason: str, status: str) -> None:
    job = world.submit()
    worker = world.start(job)
    request_action(world, job, "pause")
    world.tick()
    worker.end(reason, step=20)
    world.tick()
    assert world.status(job) == status


def test_resume_while_pausing_starts_a_next_attempt(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    request_action(world, job, "pause")
    world.tick()
    request_action(world, job, "resume")
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "pause", (
        "a stop that the worker has received is completed"
    )
    world.tick()
    assert world.status(job) == "pausing"
    worker.end("preempted", step=7)
    world.tick(3)
    assert world.status(job) == "pending"
    assert world.job(job)["attempt"]["number"] == 2


def test_resume_before_the_worker_reacts_withdraws_the_pause(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    request_action(world, job, "pause")
    request_action(world, job, "resume")
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] is None
    world.tick()
    assert world.status(job) == "running"


def test_cancel_overrides_a_pause(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    request_action(world, job, "pause")
    world.tick()
    request_action(world, job, "cancel")
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "cancel"
    world.tick()
    assert (world.status(job), len(world.scheduler.cancelled)) == ("cancelling", 1)
    world.scheduler.set_states("ended")
    world.tick()
    assert world.status(job) == "cancelled"
    other = world.submit()
    request_action(world, other, "pause")
    world.tick()
    request_action(world, other, "cancel")
    world.tick()
    job_resource = world.job(other)
    assert (job_resource["status"], job_resource["status_message"]) == ("cancelled", "Cancelled while paused.")


def test_submission_that_never_started_is_withdrawn(world: World) -> None:
    job = world.submit()
    blocked = world.settings.runs / job
    blocked.write_text("a file where the folder should be")
    world.tick()
    assert world.status(job) == "submitting"
    request_action(world, job, "pause")
    world.tick(2)
    assert world.status(job) == "paused"
    blocked.unlink()
    request_action(world, job, "resume")
    world.tick(2)
    assert world.status(job) == "pending"
    assert [a["exit_reason"] for a in world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]] == ["paused", None]


@pytest.mark.databases("postgres")
def test_unconfirmed_submission_is_searched_before_the_job_is_paused(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    request_action(world, job, "pause")
    for _ in range(2):
        world.clock.advance(60)
        world.tick()
        assert world.status(job) == "submitting"
    world.clock.advance(120)
    world.tick(2)
    assert world.status(job) == "paused"
    assert world.scheduler.submitted == []


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_ended_job_rejects_actions_with_a_message(world: World, verb: str) -> None:
    job = world.submit()
    request_action(world, job, "cancel")
    refused = request_action(world, job, verb)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_cancelling")
    world.tick()
    refused = request_action(world, job, verb)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_finished")
    assert "already been cancelled" in refused.json()["error"]["message"]


def test_only_the_owner_can_act_on_a_job(world: World) -> None:
    job = world.submit()
    for role in ("user", "viewer"):
        client = world.new_user(role, "somebody")  # type: ignore[arg-type]
        for verb in ("pause", "resume", "retry"):
            assert client.post(f"/v1/jobs/{job}/{verb}").status_code == 403


def failed(world: World) -> str:
    job = world.submit(restart={"max_retries": 0})
    worker = world.start(job)
    worker.metrics([("train/loss", step, 1.0) for step in range(1, 9)])
    worker.checkpoint(5)
    worker.end("error", step=8, failure={"type": "ValueError", "message": "bad"})
    world.tick()
    assert world.status(job) == "failed"
    return job


def curve(world: World, job: str) -> dict[int, float]:
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics?keys=train/loss").json()["series"]
    return dict(zip(series["steps"], series["values"], strict=True))


def test_retry_resumes_from_the_last_checkpoint_with_all_retries(world: World) -> None:
    job = failed(world)
    for _ in range(2):
        answer = request_action(world, job, "retry", {"from": "checkpoint"})
        assert (answer.status_code, answer.json()["status"], answer.json()["error"]) == (
            202,
            "queued",
            None,
        )
    assert count_events(world, job, "retry_requested") == 1
    job_resource = world.job(job)
    assert (job_resource["last_checkpoint_step"], job_resource["finished_at"], job_resource["status_reason"]) == (
        5,
        None,
        None,
    )
    worker = world.start(job)
    worker.metrics([("train/loss", 6, 2.0)], resumed=5)
    assert curve(world, job) == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 2}
    worker.end("completed", step=20)
    world.tick()
    assert world.status(job) == "succeeded"


def test_retry_from_scratch_discards_checkpoints_and_reports(world: World) -> None:
    job = failed(world)
    assert request_action(world, job, "retry", {"from": "scratch"}).status_code == 202
    job_resource = world.job(job)
    assert (job_resource["last_checkpoint_step"], job_resource["progress"], job_resource["metrics"]) == (None, None, {})
    assert world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"] == []
    worker = world.start(job)
    launch = world.folder(job, 2).launch.read_text()
    assert '"first_execution": 2' in launch
    worker.metrics([("train/loss", 1, 2.0)])
    assert curve(world, job) == {1: 2.0}


@pytest.mark.databases("postgres")
def test_late_report_does_not_restore_a_discarded_checkpoint(world: World) -> None:
    job = failed(world)
    old = world.worker(job)
    request_action(world, job, "retry", {"from": "scratch"})
    refused = old.checkpoint(5)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "attempt_ended")
    assert world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"] == []


def test_retry_of_an_active_job_is_rejected(world: World) -> None:
    job = world.submit()
    refused = request_action(world, job, "retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_retryable")
    refused = request_action(world, job, "retry", {"from": "somewhere"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "from")
    other = failed(world)
    request_action(world, other, "retry", {"from": "scratch"})
    assert request_action(world, other, "retry", {"from": "checkpoint"}).status_code == 409


def test_retry_of_a_job_that_never_started(world: World) -> None:
    job = world.submit()
    request_action(world, job, "cancel")
    world.tick()
    assert request_action(world, job, "retry").json()["status_message"] == "Queued to run again from the beginning."
    world.start(job)


def test_retry_resubmits_a_rejected_submission(world: World) -> None:
    job = world.submit()
    world.scheduler.outcome = Rejected("invalid partition")
    world.tick()
    assert world.status(job) == "failed"
    world.scheduler.outcome = None
    request_action(world, job, "retry")
    world.tick()
    assert world.status(job) == "pending"


def test_resubmit_of_a_lost_pausing_job_pauses_it(world: World) -> None:
    job = world.submit()
    world.start(job)
    world.clock.advance(60)
    world.scheduler.states.clear()
    world.tick()
    assert world.status(job) == "lost"
    request_action(world, job, "pause")
    world.tick()
    assert world.status(job) == "lost"
    assert request_action(world, job, "resolve", {"action": "resubmit"}).status_code == 202
    world.tick()
    assert world.status(job) == "paused"


def test_run_that_ends_between_pause_and_tick_is_paused(world: World) -> None:
    job = world.submit()
    world.start(job)
    request_action(world, job, "pause")
    write_atomic(
        world.folder(job).finish(1), '{"execution":1,"reason":"preempted","step":3,"time":"2026-01-01T00:00:00Z"}'
    )
    world.scheduler.states = {tag: Observation("ended") for tag in world.scheduler.states}
    world.tick(2)
    assert world.status(job) == "paused"


@pytest.mark.parametrize(
    ("reason", "statuses"),
    [
        ("completed", ["running", "succeeded"]),
        ("error", ["running", "queued", "paused"]),
        ("rejected", ["running", "failed"]),
        ("time_limit", ["running", "pausing", "paused"]),
    ],
)
def test_exit_record_decides_the_end_before_the_pause_is_noticed(
    world: World, reason: str, statuses: list[str]
) -> None:
    job = world.submit(restart={"max_retries": 1, "on_time_limit": "fail"})
    worker = world.start(job)
    request_action(world, job, "pause")
    worker.end(reason, step=20)
    world.tick(3)
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200&order=asc").json()["data"]
    changes = [event for event in events if event["type"] == "status"]
    assert [event["data"]["status"] for event in changes][-len(statuses) :] == statuses
    assert "before the attempt started" not in changes[-1]["message"]
