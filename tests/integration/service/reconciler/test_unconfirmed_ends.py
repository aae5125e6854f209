"""Attempts that Slurm has ended while their processes live on, such as on a node that lost contact to Slurm."""

import json
import shutil
from datetime import timedelta
from typing import Any

import pytest

from service.jobs.repository import JobRepository
from service.scheduler.base import Ambiguous, Observation
from tests.support.world import FakeWorker, World
from trainyard.contract.wire.reports import CheckpointReport, MetricsBatch
from trainyard.contract.wire.spool import format_record

pytestmark = pytest.mark.databases("sqlite")

NODE_FAIL = Observation("ended", "Slurm: NODE_FAIL", ("node1",), end_state="node_failure")
DROPPED = Observation("ended", "Slurm: CANCELLED by slurmctld", (), end_state="dropped")


def heartbeat(worker: FakeWorker) -> Any:
    answer = worker.post("heartbeat", {"execution": worker.execution})
    assert answer.status_code == 200
    return answer.json()


def observe(world: World, observation: Observation) -> None:
    world.scheduler.states[world.scheduler.submitted[0].tag] = observation


@pytest.mark.parametrize("observation", [NODE_FAIL, DROPPED], ids=["node failure", "dropped"])
@pytest.mark.fault_scenario(38)
def test_next_attempt_waits_for_the_exit_record(world: World, observation: Observation) -> None:
    job = world.submit()
    worker = world.start(job)
    heartbeat(worker)
    observe(world, observation)
    world.tick(3)
    shown = world.job(job)
    assert (shown["status"], shown["attempt"]["number"]) == ("running", 1)
    assert shown["status_message"].startswith("Slurm has ended the job, but its worker still runs.")
    assert heartbeat(worker)["stop"] == "pause", "it saves a checkpoint and stops"
    assert worker.finish("preempted", step=7).status_code == 200
    world.tick(2)
    assert world.job(job)["attempt"]["number"] == 2


def test_next_attempt_waits_for_silence(world: World) -> None:
    job = world.submit()
    heartbeat(world.start(job))
    observe(world, NODE_FAIL)
    world.pass_time(25)
    assert world.job(job)["attempt"]["number"] == 1
    world.pass_time(10)
    assert world.job(job)["attempt"]["number"] == 2


def test_worker_that_never_stops_is_given_up(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    for _ in range(32):
        heartbeat(worker)
        observe(world, NODE_FAIL)
        world.tick()
        world.clock.advance(19)
    assert world.job(job)["attempt"]["number"] == 2
    assert heartbeat(worker)["stop"] == "cancel"


@pytest.mark.databases("postgres")
def test_cancellation_waits_for_the_worker_too(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    heartbeat(worker)
    observe(world, NODE_FAIL)
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick(2)
    assert world.status(job) == "cancelling"
    assert heartbeat(worker)["stop"] == "cancel"
    world.clock.advance(60)
    world.tick()
    assert world.status(job) == "cancelled"


def write_spool(world: World, job: str, *, checkpoint: int, last_step: int) -> None:
    """Write what an ended attempt still reports: a point per step after 3, and one checkpoint."""
    time = world.clock()
    points = [{"key": "train/loss", "step": step, "value": 2.0, "time": time} for step in range(4, last_step + 1)]
    batch = MetricsBatch.model_validate({"execution": 1, "resumed_from_step": 0, "points": points})
    report = CheckpointReport.model_validate(
        {
            "execution": 1,
            "step": checkpoint,
            "size_bytes": 1,
            "digest": "sha256:" + "0" * 64,
            "world_size": 2,
            "time": time,
        }
    )
    folder = world.folder(job)
    folder.spool.mkdir(parents=True, exist_ok=True)
    folder.spool_file(1).write_bytes(format_record(0, "metrics", batch) + format_record(1, "checkpoint", report))


def steps(world: World, job: str) -> list[int]:
    answer = world.client.get(f"/v1/jobs/{job}/points?limit=1000").json()
    return sorted({point["step"] for point in answer["data"]})


def test_late_reports_are_stored_once_the_next_attempt_runs(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.metrics([("train/loss", step, 1.0) for step in (1, 2, 3)]).status_code == 200
    observe(world, NODE_FAIL)
    world.clock.advance(60)
    world.tick(2)
    # The first attempt lives on, unheard, until it reads that the second one is current.
    write_spool(world, job, checkpoint=6, last_step=8)
    second = world.start(job)
    assert second.metrics([("train/loss", step, 1.0) for step in (7, 8, 9)], resumed=6).status_code == 200
    assert steps(world, job) == [1, 2, 3, 7, 8, 9]
    world.clock.advance(31)
    heartbeat(second)
    world.tick()
    assert steps(world, job) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert world.job(job)["metrics"]["train/loss"] == 1.0, "the latest value is that of the second attempt"
    assert [row["step"] for row in world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]] == [6]


def test_late_reports_are_stored_when_the_next_attempt_ends_early(world: World) -> None:
    job = world.submit()
    world.start(job)
    observe(world, NODE_FAIL)
    world.clock.advance(60)
    world.tick(2)
    write_spool(world, job, checkpoint=6, last_step=8)
    second = world.start(job)
    assert second.checkpoint(20).status_code == 200
    second.end("completed", step=20)
    world.tick(2)
    assert world.status(job) == "succeeded"
    assert steps(world, job) == [4, 5, 6, 7, 8]
    known = [row["step"] for row in world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]]
    assert known == [20], "the second attempt has reported newer checkpoints"


def test_late_reports_of_a_resolved_attempt_are_stored(world: World) -> None:
    world.scheduler.name = "slurm"
    world.reconciler = world.new_reconciler("slurm")
    world.clock.advance(60)
    job = world.submit()
    worker = world.start(job)
    assert worker.metrics([("train/loss", step, 1.0) for step in (1, 2, 3)]).status_code == 200
    world.scheduler.states = {}
    world.clock.advance(60)
    world.tick()
    assert world.status(job) == "lost"
    assert world.client.post(f"/v1/jobs/{job}/resolve", json={"action": "resubmit"}).status_code == 202
    world.tick(2)
    assert launch_document(world, job)["settle_seconds"] == 15
    write_spool(world, job, checkpoint=6, last_step=8)
    second = world.start(job)
    assert second.metrics([("train/loss", step, 1.0) for step in (7, 8, 9)], resumed=6).status_code == 200
    world.clock.advance(31)
    heartbeat(second)
    world.tick()
    assert steps(world, job) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_spool_opened_during_the_ingest_of_another_stays_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    world.start(job)
    observe(world, NODE_FAIL)
    world.clock.advance(60)
    world.tick(2)
    second = world.start(job)
    ingests = world.reconciler._ingests
    run = ingests.run

    def open_another(*args: Any, late: bool = False, **options: Any) -> bool:
        if late:
            with world.database.write() as session:
                JobRepository(session, world.clock()).get(job).open_spool = 2
        return run(*args, late=late, **options)

    monkeypatch.setattr(ingests, "run", open_another)
    world.clock.advance(31)
    heartbeat(second)
    world.tick()
    with world.database.read() as session:
        assert JobRepository(session, world.clock()).get(job).open_spool == 2


def test_resolved_submission_leaves_the_spool_of_an_earlier_attempt_open(world: World) -> None:
    job = world.submit()
    world.start(job)
    observe(world, NODE_FAIL)
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.clock.advance(60)
    world.tick(2)
    assert (world.status(job), world.job(job)["attempt"]["number"]) == ("submitting", 2)
    world.scheduler.outcome = None
    assert world.client.post(f"/v1/jobs/{job}/resolve", json={"action": "resubmit"}).status_code == 202
    world.tick(2)
    write_spool(world, job, checkpoint=6, last_step=8)
    third = world.start(job)
    world.clock.advance(31)
    heartbeat(third)
    world.tick()
    assert steps(world, job) == [4, 5, 6, 7, 8]


def test_only_attempts_without_exit_record_are_read_again(world: World) -> None:
    job = world.submit()
    world.start(job).end("preempted", step=3)
    world.tick(2)
    write_spool(world, job, checkpoint=6, last_step=8)
    world.start(job).end("completed", step=20)
    world.tick(2)
    assert steps(world, job) == []


@pytest.mark.parametrize(("leaves_record", "seconds"), [(False, 15), (True, 0)])
def test_next_attempt_waits_for_processes_that_may_live_on(world: World, leaves_record: bool, seconds: int) -> None:
    world.scheduler.name = "slurm"
    world.reconciler = world.new_reconciler("slurm")
    world.clock.advance(60)
    job = world.submit()
    worker = world.start(job)
    assert launch_document(world, job)["settle_seconds"] == 0
    if leaves_record:
        assert worker.finish("preempted", step=3).status_code == 200
    observe(world, NODE_FAIL)
    world.clock.advance(60)
    world.tick(2)
    assert (world.job(job)["attempt"]["number"], launch_document(world, job)["settle_seconds"]) == (2, seconds)


def launch_document(world: World, job: str) -> Any:
    return json.loads(world.folder(job, world.job(job)["attempt"]["number"]).launch.read_bytes())


def test_launch_document_names_the_newest_checkpoint(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert launch_document(world, job)["checkpoint_step"] is None
    assert worker.checkpoint(10).status_code == 200
    worker.end("preempted", step=10)
    world.tick(2)
    assert launch_document(world, job)["checkpoint_step"] == 10


def test_current_attempt_has_the_highest_execution(world: World) -> None:
    job = world.submit()
    first = world.start(job)
    current = world.folder(job).root.parents[1] / "current.json"
    one = json.loads(current.read_text())
    assert one == {"attempt_id": first.attempt_id, "attempt": 1, "execution": 1}
    first.end("preempted", step=3)
    world.tick(2)
    two = json.loads(current.read_text())
    assert (two["attempt"], two["execution"] > one["execution"]) == (2, True)


@pytest.mark.databases("postgres")
def test_heartbeat_reply_has_the_time_left_as_slurm_reports_it(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert heartbeat(worker)["seconds_left"] is None
    for minutes in (10, 30):
        end = world.clock() + timedelta(minutes=minutes)
        observe(world, Observation("running", nodes=("node1",), end=end))
        world.tick()
        assert heartbeat(worker)["seconds_left"] == minutes * 60.0 - 1.0
    world.clock.advance(7200)
    assert heartbeat(worker)["seconds_left"] == 0.0


@pytest.mark.fault_scenario(49)
def test_run_directory_that_was_deleted_is_no_success(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    shutil.rmtree(world.folder(job).root.parents[1])
    worker.end("completed", step=20)
    world.tick(2)
    shown = world.job(job)
    assert (shown["status"], shown["error"]["type"]) == ("failed", "RunDirectoryVanished")
    assert "TRAINYARD_RUNS_DIR" in shown["error"]["hint"]


def test_filesystem_that_is_not_mounted_is_no_deletion(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    runs = world.settings.runs
    runs.rename(runs.with_name("unmounted"))
    worker.end("completed", step=20)
    world.tick(2)
    assert world.status(job) == "succeeded"
    runs.with_name("unmounted").rename(runs)
