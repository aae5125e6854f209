"""What jobs say and do when the scheduler does not answer, keeps one from running, or says that a node failed."""

import json

from service.scheduler.base import Observation
from tests.support.world import World

SUSPENDED = "suspended in Slurm (by an operator or by gang scheduling); it goes on by `scontrol resume 7`"


def test_a_waiting_job_says_since_when_and_is_submitted_after(world: World) -> None:
    world.scheduler.unavailable = True
    job = world.submit()
    world.tick(times=90)
    assert world.status(job) == "queued"
    assert world.job(job)["status_message"] == (
        "waits for the scheduler, which does not answer since 2026-01-01 00:00 UTC"
    )
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    assert len(events) == 3
    world.scheduler.unavailable = False
    world.tick()
    assert world.status(job) == "pending"


def test_a_cancel_shows_at_once_and_is_carried_out_when_it_answers(world: World) -> None:
    job = world.submit()
    world.start(job)
    world.scheduler.unavailable = True
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert (world.status(job), world.scheduler.cancelled) == ("cancelling", [])
    assert world.job(job)["status_message"] == "cancel asked; waits for the scheduler to answer"
    world.scheduler.unavailable = False
    world.tick()
    assert len(world.scheduler.cancelled) == 1
    assert "waits for" not in world.job(job)["status_message"]
    world.scheduler.set_states("ended")
    world.tick()
    assert world.status(job) == "cancelled"


def test_a_suspended_job_tells_and_promises_no_end(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    progress = {"step": 5, "total_steps": 20, "seconds_per_step": 60.0}
    assert worker.metrics([("train/loss", 5, 1.0)], progress=progress).status_code == 200
    assert world.job(job)["progress"]["eta_seconds"] == 900
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("running", SUSPENDED, suspended=True)
    world.tick(times=3)
    told = world.job(job)
    assert (told["status"], told["status_message"], told["progress"]["eta_seconds"]) == ("running", SUSPENDED, None)
    world.scheduler.set_states("running")
    world.tick(times=3)
    assert world.job(job)["status_message"] == "running again; it is no longer suspended"
    assert world.job(job)["progress"]["eta_seconds"] is not None
    events = [event["message"] for event in world.client.get(f"/v1/jobs/{job}/events").json()["data"]]
    assert (events.count(SUSPENDED), events.count("running again; it is no longer suspended")) == (1, 1)


def test_a_suspended_job_can_be_cancelled(world: World) -> None:
    job = world.submit()
    world.start(job)
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("running", SUSPENDED, suspended=True)
    world.tick()
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert (world.status(job), world.scheduler.cancelled) == ("cancelling", [tag])


def test_a_node_that_slurm_says_has_failed_is_left_out_though_its_worker_had_time_to_say_more(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.finish("preempted").status_code == 200
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("ended", "Slurm: NODE_FAIL", ("node1",), ended_as="node_failure")
    world.tick(times=2)
    assert json.loads(world.folder(job, 2).launch.read_text())["excluded_nodes"] == ["node1"]
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    (excluded,) = [event for event in events if event["type"] == "node_excluded"]
    assert excluded["data"] == {"node": "node1", "attempt": 1}


def test_a_run_that_the_scheduler_forgot_is_not_lost_while_it_is_heard(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.scheduler.states.clear()
    for _ in range(12):
        worker.post("heartbeat", {"execution": 1})
        world.tick()
        world.clock.advance(9)
        assert world.status(job) == "running"
    assert "no longer knows it" in world.job(job)["status_message"]
    world.clock.advance(30)
    world.tick()
    assert world.status(job) == "lost", "nothing is heard of it any more"


def test_a_run_that_is_heard_is_watched_as_the_job_that_has_claimed_it(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    worker = world.start(job)
    claim = {"nonce": "nonce-of-the-first", "host": "n1", "pid": 7, "scheduler_id": "78"}
    world.folder(job).claim.write_text(json.dumps(claim))
    world.scheduler.states.clear()
    worker.post("heartbeat", {"execution": 1})
    world.tick()
    assert world.job(job)["attempt"]["scheduler_id"] == "78", "the one that Slurm has forgotten was a double"
    assert world.status(job) == "running"


def test_a_lost_run_that_beats_again_comes_back_by_itself_and_stays(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.scheduler.states.clear()
    world.clock.advance(60)
    world.tick()
    assert world.status(job) == "lost"
    world.clock.advance(3600)
    world.reconciler = world.new_reconciler("one")
    world.tick()
    assert world.status(job) == "lost", "that a service has come back is no sign of life of the run"
    for _ in range(6):
        assert worker.post("heartbeat", {"execution": 1}).json()["stop"] is None
        world.tick()
        world.clock.advance(9)
        assert world.status(job) == "running"
    world.scheduler.states = {plan.tag: Observation("running") for plan in world.scheduler.submitted}
    world.tick()
    assert world.job(job)["status_message"] == "the scheduler knows it again"
    worker.end("completed")
    world.tick()
    assert world.status(job) == "succeeded"
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    said = [event["data"]["status"] for event in events if event["type"] == "status"]
    assert said.count("lost") == 1, "it does not go back and forth"


def test_a_lost_run_that_beats_again_can_be_paused(world: World) -> None:
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
