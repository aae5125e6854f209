"""Jobs while the scheduler is unavailable, suspends a job, reports a failed node or has forgotten a job."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from service.scheduler.backends import BACKENDS
from service.scheduler.base import Ambiguous, Observation, SchedulerUnavailableError
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

SUSPENDED = "Suspended in Slurm by an operator or by gang scheduling. `scontrol resume 7` resumes it."


def test_a_queued_job_waits_for_an_unavailable_scheduler(world: World) -> None:
    world.scheduler.unavailable = True
    job = world.submit()
    world.pass_time(90)
    assert world.status(job) == "queued"
    assert world.job(job)["status_message"] == (
        "Waiting for the scheduler, which has not responded since 2026-01-01 00:00 UTC."
    )
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    assert len(events) == 3
    world.scheduler.unavailable = False
    world.tick()
    assert world.status(job) == "pending"


def test_a_cancellation_is_carried_out_when_the_scheduler_responds(world: World) -> None:
    job = world.submit()
    world.start(job)
    world.scheduler.unavailable = True
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert (world.status(job), world.scheduler.cancelled) == ("cancelling", [])
    assert world.job(job)["status_message"] == "Cancellation requested. Waiting for the scheduler to respond."
    world.scheduler.unavailable = False
    world.tick()
    assert len(world.scheduler.cancelled) == 1
    assert "to respond" not in world.job(job)["status_message"]
    world.scheduler.set_states("ended")
    world.tick()
    assert world.status(job) == "cancelled"


def test_readiness_reports_the_end_of_an_outage_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(BACKENDS["local"], cluster_interval=timedelta(seconds=60))
    monkeypatch.setitem(BACKENDS, "local", slow)
    world.scheduler.unavailable = True
    world.tick()
    assert world.client.get("/readyz").json()["status"] == "degraded"
    world.scheduler.unavailable = False
    world.clock.advance(5)
    world.tick(times=2)
    assert world.client.get("/readyz").json()["status"] == "ok"


@pytest.mark.fault_scenario(41)
def test_a_suspended_job_reports_it_and_has_no_eta(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    progress = {"step": 5, "total_steps": 20, "seconds_per_step": 60.0}
    assert worker.metrics([("train/loss", 5, 1.0)], progress=progress).status_code == 200
    assert world.job(job)["progress"]["eta_seconds"] == 900
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("running", SUSPENDED, suspended=True)
    world.tick(times=3)
    shown = world.job(job)
    assert (shown["status"], shown["status_message"], shown["progress"]["eta_seconds"]) == ("running", SUSPENDED, None)
    world.scheduler.set_states("running")
    world.tick(times=3)
    assert world.job(job)["status_message"] == "Running: no longer suspended in Slurm."
    assert world.job(job)["progress"]["eta_seconds"] is not None
    events = [event["message"] for event in world.client.get(f"/v1/jobs/{job}/events").json()["data"]]
    assert (events.count(SUSPENDED), events.count("Running: no longer suspended in Slurm.")) == (1, 1)


def test_a_suspended_job_can_be_cancelled(world: World) -> None:
    job = world.submit()
    world.start(job)
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("running", SUSPENDED, suspended=True)
    world.tick()
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert (world.status(job), world.scheduler.cancelled) == ("cancelling", [tag])


def test_a_node_failure_reported_by_slurm_excludes_the_node(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.finish("preempted").status_code == 200
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("ended", "Slurm: NODE_FAIL", ("node1",), end_state="node_failure")
    world.tick(times=2)
    assert json.loads(world.folder(job, 2).launch.read_text())["excluded_nodes"] == ["node1"]
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    (excluded,) = [event for event in events if event["type"] == "node_excluded"]
    assert excluded["data"] == {"node": "node1", "attempt": 1}


def test_a_forgotten_run_is_not_lost_while_heartbeats_arrive(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.scheduler.states.clear()
    for _ in range(12):
        worker.post("heartbeat", {"execution": 1})
        world.tick()
        world.clock.advance(9)
        assert world.status(job) == "running"
    assert "no longer lists the job" in world.job(job)["status_message"]
    world.clock.advance(30)
    world.tick()
    assert world.status(job) == "lost", "no further heartbeat arrived"


def test_a_run_is_observed_as_the_job_that_claimed_it(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    worker = world.start(job)
    claim = {"nonce": "nonce-of-the-first", "host": "n1", "pid": 7, "scheduler_id": "78"}
    world.folder(job).claim.write_text(json.dumps(claim))
    world.scheduler.states.clear()
    worker.post("heartbeat", {"execution": 1})
    world.tick()
    assert world.job(job)["attempt"]["scheduler_id"] == "78", "the entry that Slurm has forgotten was a duplicate"
    assert world.status(job) == "running"


def test_a_heartbeat_revives_a_lost_run(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.scheduler.states.clear()
    world.clock.advance(60)
    world.tick()
    assert world.status(job) == "lost"
    world.clock.advance(3600)
    world.reconciler = world.new_reconciler("one")
    world.tick()
    assert world.status(job) == "lost", "a restarted service is no sign of life of the run"
    for _ in range(6):
        assert worker.post("heartbeat", {"execution": 1}).json()["stop"] is None
        world.tick()
        world.clock.advance(9)
        assert world.status(job) == "running"
    world.scheduler.states = {plan.tag: Observation("running") for plan in world.scheduler.submitted}
    world.tick()
    assert world.job(job)["status_message"] == "Running: the scheduler lists the job again."
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    statuses = [event["data"]["status"] for event in events if event["type"] == "status"]
    assert statuses.count("lost") == 1, "it does not go back and forth"


def test_a_revived_run_can_be_paused(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.scheduler.states.clear()
    world.clock.advance(60)
    world.tick()
    world.client.post(f"/v1/jobs/{job}/pause")
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "pause"
    world.tick(2)
    assert world.status(job) == "pausing"
    worker.finish("preempted", step=7)
    world.tick()
    assert world.status(job) == "paused"


def test_a_cancellation_precedes_the_searches_of_other_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of a slow accounting may use up the time that a tick has for failing calls."""
    calls: list[str] = []

    def find(*_: object) -> list[str]:
        calls.append("find")
        raise SchedulerUnavailableError("sacct: it has not answered yet")

    monkeypatch.setattr(world.scheduler, "find", find)
    monkeypatch.setattr(world.scheduler, "cancel", lambda _: calls.append("cancel"))
    world.scheduler.outcome = Ambiguous("sbatch timed out")
    for _ in range(3):
        world.submit()
        world.tick()
    world.scheduler.outcome = None
    job = world.submit()
    world.start(job)
    assert not world.reconciler.ends_attempts
    world.client.post(f"/v1/jobs/{job}/cancel")
    calls.clear()
    world.tick()
    assert calls == ["cancel", *["find"] * 3]
    assert world.reconciler.ends_attempts, "the next ticks follow soon"


@pytest.mark.parametrize("pausing", [False, True])
def test_a_worker_is_not_silent_because_the_scheduler_answers_late(world: World, pausing: bool) -> None:
    job = world.submit()
    worker = world.start(job)
    if pausing:
        assert world.client.post(f"/v1/jobs/{job}/pause").status_code == 202

    def answer_late(label: str) -> None:
        if label == "tick.after-load":
            world.clock.advance(90)
            assert worker.post("heartbeat", {"execution": worker.execution}).status_code == 200

    world.app_state.failpoint = answer_late
    world.tick()
    assert (world.status(job), world.scheduler.cancelled) == ("pausing" if pausing else "running", [])
    assert "has sent nothing" not in world.job(job)["status_message"]
