"""The evidence of each attempt's end is stored with the attempt."""

from collections.abc import Mapping, Sequence

import pytest
import sqlalchemy as sa

from service.core.failpoints import no_failpoint
from service.db.models import Job
from service.scheduler.base import Canceller, Observation, SubmittedJob
from tests.support.world import World
from trainyard.contract.layout import write_atomic
from trainyard.contract.wire.reports import Failure, FinishRecord

pytestmark = pytest.mark.databases("sqlite")


def test_attempts_show_the_schedulers_report_and_the_workers(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    failure = Failure(rank=1, type="OSError", message="[Errno 5] Input/output error\nmore", node="node1")
    record = FinishRecord(execution=worker.execution, reason="node_failure", failure=failure, time=world.clock())
    # The worker cannot send it: the service reads the file.
    write_atomic(world.folder(job).finish(worker.execution), record.model_dump_json())
    tag = world.scheduler.submitted[0].tag
    end = "Slurm: NODE_FAIL; node1 is down: Not responding"
    world.scheduler.states[tag] = Observation("ended", end, ("node1",), end_state="node_failure")
    world.tick()
    (first, *_) = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    assert (first["exit_reason"], first["scheduler_end"], first["failed_node"]) == ("node_failure", end, "node1")
    assert first["failure"] == "rank 1: OSError: [Errno 5] Input/output error"


OOM = "slurmstepd-node1: error: Detected 1 oom-kill event(s) in StepId=2.0. Some of your processes may have been killed"


@pytest.mark.parametrize("claimed", [True, False])
def test_a_step_that_exceeded_its_memory_is_the_jobs_fault(world: World, claimed: bool) -> None:
    """The kernel has killed the launcher, which leaves no exit record, and Slurm reports FAILED alone."""
    job = world.submit(restart={"max_retries": 0})
    if claimed:
        world.start(job)
    else:
        world.tick()
    log = world.folder(job).submitit / "2_0_log.err"
    log.parent.mkdir(exist_ok=True)
    log.write_text(f"{OOM}\n")
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("ended", "Slurm: FAILED", ("node1",), end_state="failed")
    world.tick()
    (attempt,) = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    assert (world.status(job), attempt["exit_reason"]) == ("failed", "out_of_memory")
    assert (attempt["scheduler_end"], attempt["failed_node"]) == (f"Slurm: FAILED; {OOM}", None)
    assert world.job(job)["status_message"].startswith("OutOfMemory: the scheduler ended the attempt")


def test_attempt_that_runs_has_no_evidence_of_an_end(world: World) -> None:
    job = world.submit()
    world.start(job)
    (attempt,) = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    assert (attempt["scheduler_end"], attempt["failure"], attempt["failed_node"]) == (None, None, None)


def cancel_outside(world: World, canceller: Canceller | None = None) -> None:
    """Let an account, or nobody knows who, cancel the newest attempt, which has started."""
    tag = world.scheduler.submitted[-1].tag
    end = Observation("ended", "Slurm: CANCELLED", ("node1",), end_state="cancelled", canceller=canceller)
    world.scheduler.states[tag] = end
    world.tick()


def test_job_cancelled_by_an_unknown_user_continues_once(world: World) -> None:
    job = world.submit()
    world.start(job)
    cancel_outside(world)
    assert world.status(job) == "queued"
    world.start(job)
    cancel_outside(world)
    assert world.job(job)["status_reason"] == "cancelled_outside"
    assert world.client.post(f"/v1/jobs/{job}/retry").status_code == 202
    world.start(job)
    cancel_outside(world)
    assert world.status(job) == "queued", "a retry by the user begins anew"
    attempts = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    reasons = [attempt["exit_reason"] for attempt in attempts]
    assert reasons == ["cancelled_outside", "user_cancelled", "cancelled_outside"]


def test_job_cancelled_by_a_known_user_ends_and_names_them(world: World) -> None:
    job = world.submit()
    world.start(job)
    cancel_outside(world, Canceller("ada"))
    shown = world.job(job)
    assert shown["status_reason"] == "cancelled_outside"
    assert shown["status_message"].startswith("Cancelled by ada with `scancel` (Slurm: CANCELLED).")


@pytest.mark.parametrize("action", ["cancel", "pause"])
def test_scheduler_learns_which_attempts_the_service_ends(
    world: World, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, stopping = world.submit(), []
    world.start(job)
    observe = world.scheduler.observe

    def observe_and_note(jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        stopping.extend(job.is_stopping for job in jobs)
        return observe(jobs)

    monkeypatch.setattr(world.scheduler, "observe", observe_and_note)
    world.tick()
    assert world.client.post(f"/v1/jobs/{job}/{action}").status_code == 202
    world.tick()
    assert stopping == [False, True]


@pytest.mark.parametrize("field", [{"new_section": None}, {"new_section": {"size": 3}}])
def test_jobs_of_a_later_release_end_after_a_rollback(world: World, field: Mapping[str, object]) -> None:
    job = world.submit(restart={"max_retries": 0})
    worker = world.start(job)
    with world.database.write() as session:
        row = session.scalars(sa.select(Job).where(Job.id == job)).one()
        row.spec = {**row.spec, **field}
    worker.end("error", failure={"type": "ValueError", "message": "bad"})
    world.tick()
    assert (world.status(job), world.job(job)["status_reason"]) == ("failed", "error")


def test_jobs_of_a_later_release_start_after_a_rollback(world: World) -> None:
    job = world.submit()
    with world.database.write() as session:
        row = session.scalars(sa.select(Job).where(Job.id == job)).one()
        row.spec = {**row.spec, "new_section": None}
    worker = world.start(job)
    worker.end("completed", step=20)
    world.tick()
    assert world.status(job) == "succeeded"


def test_an_exit_record_that_arrives_during_the_tick_decides(world: World) -> None:
    """The file of the record is not visible yet, as on NFS, and the scheduler reports the end at once."""
    job = world.submit()
    worker = world.start(job)

    def end_after_load(label: str) -> None:
        if label == "tick.after-load":
            worker.end("completed", step=20)

    world.app_state.failpoint = end_after_load
    world.tick()
    assert world.status(job) == "running"
    world.app_state.failpoint = no_failpoint
    world.tick()
    assert (world.status(job), len(world.client.get(f"/v1/jobs/{job}/attempts").json()["data"])) == ("succeeded", 1)
