"""The fault campaign: numbered scenarios, and the tests of those that need no Slurm and no worker process."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from service.core.errors import LeaseLostError, UnavailableError
from service.db.leader_lease import LeaderLease
from service.scheduler.base import Ambiguous, Observation
from tests.support.world import World

pytestmark = pytest.mark.databases("postgres")

ROOT = Path(__file__).parents[2]
SCENARIOS = {
    1: "the service is killed before the job is committed",
    2: "the service is killed after the commit and before sbatch",
    3: "the service is killed after sbatch and before the id is recorded",
    4: "sbatch fails although it was accepted",
    5: "sbatch fails and was not accepted",
    6: "sbatch hangs",
    7: "sbatch prints an id and fails",
    8: "two Slurm jobs for one attempt",
    9: "a suspended leader continues",
    10: "slurmctld down for 30 minutes",
    11: "slurmdbd down or absent",
    12: "sacct reports late",
    13: "the controller purges a job before it is observed",
    14: "a job is preempted",
    15: "PreemptMode=CANCEL",
    16: "the time limit, with an early or missing warning",
    17: "a node dies",
    18: "a rank is killed",
    19: "an external scancel, and a hold",
    20: "a scheduler id is reused",
    21: "the service is down while a run trains",
    22: "a response is lost after the commit",
    23: "a worker's clock is wrong",
    24: "the disk is full",
    25: "the database is unavailable",
    26: "a run is killed while a checkpoint is written",
    27: "the newest checkpoint is damaged",
    28: "the shared filesystem shows files late",
    29: "a newer or half-migrated database",
    30: "many streams and slow clients",
    31: "ten thousand jobs",
    32: "a job is cancelled before sbatch or while its submission is unconfirmed",
    33: "a service is started on an empty or older database",
    34: "the database takes no writes",
    35: "another process locks the SQLite file",
    36: "the database is restored while jobs run",
    37: "the service's clock is set",
    38: "the controller loses its state",
    39: "jobs end during an outage of a cluster without accounting",
    40: "requeue and requeuehold",
    41: "a job is suspended",
    42: "an operator changes the time limit",
    43: "an operator renames a job",
    44: "the only remaining node is excluded",
    45: "an account or QOS is at its limit",
    46: "a node loses the controller, the service or the shared folder",
    47: "a checkpoint has no manifest, or all are damaged",
    48: "the checkpoint folder cannot be written",
    49: "the run directory is deleted",
    50: "the launch document is missing",
    51: "a rank hangs",
    52: "a rank is slow",
    53: "a rank prints without end",
    54: "hundreds of jobs are submitted at once",
    55: "preemption, a time limit and a node failure in one run",
    56: "a fork has another number of GPUs",
    57: "GPU types of MIG",
    58: "options that name another cluster",
    59: "a node lacks the shared filesystem and takes the whole queue",
    60: "the controller forgets a pending job, and lists it again later",
}
"""The scenarios. Their tests, in any folder, have the marker `@pytest.mark.fault_scenario(number)`."""

PARTLY_TESTED = {
    21: "the outage lasts seconds instead of hours; during it a run only appends to a file, and the sender's pause is "
    "bounded, so a longer outage differs only in the size of the file",
    24: "the disk of the Postgres server is not filled; limits on SQLite's pages and on the size of files simulate a "
    "full filesystem, which a test may not mount",
    29: "on Postgres no migration is interrupted, because its DDL is transactional",
    30: "the 500 clients share the process of the service and use no sockets, so the kernel's buffers are not involved",
    31: "response times of the API during such ticks are measured by `bench/submit.py`, with fewer jobs",
}
"""Parts of scenarios that are not tested, and the reason."""


def test_every_scenario_has_a_test() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    marked = [
        marker
        for text in texts
        for marker in re.findall(r"^ *@pytest\.mark\.fault_scenario\((.+)\)", text, re.MULTILINE)
    ]
    assert {int(number) for numbers in marked for number in numbers.split(",")} == set(SCENARIOS)
    assert set(PARTLY_TESTED) < set(SCENARIOS)


@pytest.mark.fault_scenario(9)
def test_09_suspended_tick_applies_nothing_after_losing_the_lease(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.end("completed")

    def stopped(label: str) -> None:
        if label == "tick.after-decision":
            world.clock.advance(60)
            assert LeaderLease(world.database, "two").acquire(world.clock())

    world.app_state.failpoint = stopped
    assert world.reconciler.run_once() is False
    assert world.status(job) == "running", "what it had decided was dropped with its term"
    with pytest.raises(LeaseLostError), LeaderLease(world.database, "one", term=1).write():
        pytest.fail("a former leader was let in")


@pytest.mark.fault_scenario(10)
def test_10_half_an_hour_without_the_controller(world: World) -> None:
    running, waiting = world.submit(), world.submit()
    world.tick()
    world.scheduler.states[world.scheduler.submitted[0].tag] = Observation("running")
    worker = world.worker(running)
    worker.execution = worker.claim().json()["execution"]
    world.scheduler.unavailable = True
    accepted = world.submit()
    for minute in range(30):
        world.tick()
        world.clock.advance(60)
        assert worker.metrics([("train/loss", minute + 1, 1.0)]).status_code == 200
    assert [world.status(job) for job in (running, waiting, accepted)] == ["running", "pending", "queued"]
    world.scheduler.unavailable = False
    world.tick()
    assert world.status(accepted) == "pending"


@pytest.mark.fault_scenario(12)
def test_12_an_id_that_is_not_listed_for_five_minutes(world: World) -> None:
    job = world.submit()
    world.tick()
    listed = dict(world.scheduler.states)
    world.scheduler.states = {}
    for _ in range(5):
        world.tick()
        world.clock.advance(60)
        assert world.status(job) in ("pending", "lost"), "nothing final is concluded"
    world.scheduler.states = listed
    world.tick()
    assert world.status(job) == "pending"
    assert len(world.scheduler.submitted) == 1


@pytest.mark.fault_scenario(16)
def test_16_a_limit_without_a_warning_loses_no_more_than_an_interval(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(10)
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("ended", "Slurm: TIMEOUT", end_state="time_limit")
    world.tick()
    shown = world.job(job)
    assert (shown["status"], shown["last_checkpoint_step"]) == ("queued", 10)
    assert "time limit reached (Slurm: TIMEOUT)" in shown["status_message"]


@pytest.mark.fault_scenario(23)
@pytest.mark.parametrize("hours", [-1, 1])
def test_23_a_node_whose_clock_is_an_hour_off(hours: int, world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    there = (world.clock() + timedelta(hours=hours)).isoformat()
    points = [{"key": "train/loss", "step": step, "value": 1.0, "time": there} for step in (1, 2)]
    assert worker.post("metrics", {"execution": 1, "resumed_from_step": 0, "points": points}).status_code == 200
    world.clock.advance(30)
    worker.finish("completed", time=there)
    world.scheduler.set_states("ended")
    world.tick()
    shown = world.job(job)
    assert shown["status"] == "succeeded"
    assert shown["started_at"] <= shown["finished_at"] <= world.clock().isoformat().replace("+00:00", "Z")
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics?keys=train/loss").json()["series"]
    assert series["steps"] == [1, 2]


@pytest.mark.fault_scenario(25)
def test_25_a_database_that_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    worker = world.start(job)

    def broken() -> object:
        raise UnavailableError("the database does not answer: on command", code="database")

    with monkeypatch.context() as patched:
        patched.setattr(world.database, "write", broken)
        patched.setattr(world.database, "write_raw", broken)
        refused = worker.metrics([("train/loss", 1, 1.0), ("train/lr", 1, 0.1)])
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database")
        with pytest.raises(UnavailableError):
            world.reconciler.run_once()
    assert world.status(job) == "running"
    assert world.client.get(f"/v1/jobs/{job}/metrics").json()["series"] == [], "no half batch"
    assert worker.metrics([("train/loss", 1, 1.0), ("train/lr", 1, 0.1)]).status_code == 200


@pytest.mark.fault_scenario(28)
def test_28_exit_record_that_appears_a_minute_late(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.clock.advance(60)
    world.scheduler.states = {}
    world.tick()
    assert world.status(job) == "lost", "not final"
    world.clock.advance(60)
    worker.finish("completed", step=20)
    world.tick()
    assert world.status(job) == "succeeded"


def test_ambiguous_submission_has_a_status_message(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    assert "Submitted without a clear answer (Socket timed out)" in world.job(job)["status_message"]


def forget(world: World, minutes: int) -> None:
    """Let the scheduler list nothing for some minutes, with an answer in each of them."""
    world.scheduler.states = {}
    for _ in range(minutes + 1):
        world.tick()
        world.clock.advance(59)


@pytest.mark.fault_scenario(60)
def test_60_former_attempt_of_a_forgotten_pending_job_never_runs(world: World) -> None:
    job = world.submit()
    world.tick()
    former, listed = world.worker(job), dict(world.scheduler.states)
    forget(world, minutes=9)
    shown = world.job(job)
    assert (shown["status"], shown["condition"]["code"]) == ("lost", "unlisted")
    assert shown["condition"]["data"] == {"until": "2026-01-01 00:10 UTC"}
    forget(world, minutes=1)
    assert world.scheduler.cancelled == list(listed), "it may be listed late"
    world.tick()
    assert (world.status(job), world.job(job)["attempt"]["number"]) == ("pending", 2)
    world.scheduler.states |= {tag: Observation("running") for tag in listed}
    assert former.claim("nonce-of-the-former").status_code == 409
    assert world.worker(job).claim("nonce-of-the-next").status_code == 200
    (first, _) = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    assert (first["exit_reason"], first["failed_node"]) == ("preempted", None)
    assert world.job(job)["status"] == "running"


@pytest.mark.fault_scenario(60)
def test_60_forgotten_job_that_starts_in_time_is_the_only_one(world: World) -> None:
    job = world.submit()
    world.tick()
    forget(world, minutes=9)
    worker = world.worker(job)
    assert worker.claim().status_code == 200
    for _ in range(20):
        worker.post("heartbeat", {"execution": 1})
        forget(world, minutes=0)
    assert (world.status(job), len(world.scheduler.submitted)) == ("running", 1)


@pytest.mark.fault_scenario(60)
def test_60_outage_of_the_scheduler_proves_no_absence(world: World) -> None:
    job = world.submit()
    world.tick()
    listed = dict(world.scheduler.states)
    forget(world, minutes=9)
    world.scheduler.unavailable = True
    world.tick()
    world.scheduler.unavailable = False
    forget(world, minutes=9)
    assert world.status(job) == "lost"
    world.scheduler.states = listed
    world.tick(2)
    assert (world.status(job), len(world.scheduler.submitted)) == ("pending", 1)


@pytest.mark.fault_scenario(60)
def test_60_claim_in_the_folder_is_no_forgotten_start(world: World) -> None:
    """The node cannot reach the service, and the controller has lost the job: it may run."""
    job = world.submit()
    world.tick()
    claim = {"nonce": "nonce-of-the-first", "host": "n1", "pid": 7}
    forget(world, minutes=5)
    world.folder(job).claim.write_text(json.dumps(claim))
    forget(world, minutes=20)
    assert (world.job(job)["condition"]["code"], len(world.scheduler.submitted)) == ("lost", 1)


@pytest.mark.fault_scenario(60)
def test_60_folders_of_forgotten_jobs_are_read_once_a_minute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit()
    world.tick()
    forget(world, minutes=1)
    readings: list[object] = []
    monkeypatch.setattr("service.reconciler.reconciler.read_exit_record", lambda *read: readings.append(read))
    world.tick(120)
    assert len(readings) == 2
