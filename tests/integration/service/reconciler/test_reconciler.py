"""The reconciler, one tick at a time, with a scheduler whose faults the test controls."""

import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service.jobs.repository import JobRepository
from service.scheduler.base import Ambiguous, Observation, Rejected
from tests.support.world import SPEC, World
from trainyard.contract.layout import RunLayout, write_atomic
from trainyard.contract.wire.launch import LaunchDocument

pytestmark = pytest.mark.databases("sqlite")

PROGRAM = {"version": 1, "task": "script", "argv": ["/bin/true"], "gpus": 1}


def types(world: World, job: str) -> list[str]:
    events = world.client.get(f"/v1/jobs/{job}/events?order=asc&limit=200").json()["data"]
    return [event["data"]["status"] if event["type"] == "status" else event["type"] for event in events]


def test_a_job_from_submission_to_success(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", 1, 2.0)], progress={"step": 1, "total_steps": 20, "seconds_per_step": 0.5})
    shown = world.job(job)
    assert (shown["progress"]["step"], shown["progress"]["eta_seconds"]) == (1, 9.5)
    world.clock.advance(2)
    assert world.job(job)["progress"]["eta_seconds"] == 7.5
    worker.checkpoint(20)
    worker.end("completed")
    world.tick()
    shown = world.job(job)
    assert (shown["status"], shown["status_reason"], shown["last_checkpoint_step"]) == ("succeeded", "completed", 20)
    assert shown["attempt"]["exit_reason"] == "completed"
    assert types(world, job) == ["created", "queued", "submitting", "submitted", "pending", "running", "succeeded"]


def test_launch_files_are_on_disk_before_the_submission(world: World) -> None:
    job = world.submit(environment={"variables": {"GREETING": "x y"}})
    world.tick()
    folder = world.folder(job)
    document = LaunchDocument.model_validate_json(folder.launch.read_bytes())
    assert (document.job_id, document.attempt, document.ranks_per_node) == (job, 1, 2)
    assert (document.execution, document.max_restarts) == (1, 2)
    run = RunLayout(world.settings.runs / job)
    private = [path for path in (run.root, *run.root.rglob("*")) if path.stat().st_mode & 0o077 == 0]
    assert set(private) == {run.root, *run.root.rglob("*")}
    assert json.loads(RunLayout(world.settings.runs / job).current.read_text())["attempt_id"] == document.attempt_id
    plan = world.scheduler.submitted[0]
    assert "GREETING" not in plan.environment
    assert not [name for name in plan.environment if name.startswith("TRAINYARD_") and name != "TRAINYARD_ATTEMPT"]
    assert folder.token.read_text().strip() not in plan.script


def test_workers_trust_the_authority_of_the_settings(database_url: str, tmp_path: Path) -> None:
    world = World(database_url, tmp_path / "state", worker_ca_file="/shared/ca.pem")
    world.submit()
    world.tick()
    assert world.scheduler.submitted[0].environment["SSL_CERT_FILE"] == "/shared/ca.pem"
    world.database.dispose()


def test_a_submission_without_a_record_is_adopted_not_duplicated(world: World) -> None:
    job = world.submit()
    world.scheduler.lose_answers = True
    with pytest.raises(KeyboardInterrupt):
        world.tick()
    assert world.status(job) == "submitting"
    restarted = world.new_reconciler("one")
    restarted.run_once()
    assert world.status(job) == "pending"
    assert len(world.scheduler.submitted) == 1
    assert world.job(job)["attempt"]["scheduler_id"] == f"id-{world.scheduler.submitted[0].tag}"


def test_a_crash_before_the_submission_submits_once(world: World) -> None:
    job = world.submit()
    world.scheduler.outcome = Ambiguous("killed")
    world.tick()
    assert world.status(job) == "submitting"
    world.scheduler.outcome = None
    world.tick()
    assert world.status(job) == "pending"
    assert len(world.scheduler.submitted) == 1


@pytest.mark.fault_scenario(5)
def test_slurm_resubmits_only_after_three_empty_searches_in_180_s(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    world.scheduler.outcome = None
    for _ in range(3):
        world.tick(5)
        assert world.scheduler.submitted == []
        world.clock.advance(55)
    world.scheduler.unavailable = True
    world.clock.advance(300)
    world.tick(3)
    assert world.scheduler.submitted == [], "an answer that did not come is no evidence"
    world.scheduler.unavailable = False
    world.tick()
    assert len(world.scheduler.submitted) == 1
    assert world.status(job) == "pending"


def test_a_rejection_fails_the_job_with_its_reason(world: World) -> None:
    job = world.submit()
    world.scheduler.outcome = Rejected("4 ranks are more than the 2 slots", "Ask for two.")
    world.tick()
    shown = world.job(job)
    assert (shown["error"]["message"], shown["error"]["hint"]) == ("4 ranks are more than the 2 slots", "Ask for two.")
    assert (shown["status"], shown["status_reason"], shown["status_message"]) == (
        "failed",
        "rejected",
        "4 ranks are more than the 2 slots",
    )


def test_finished_at_is_the_real_end_after_downtime(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.clock.advance(10)
    ended = world.clock()
    worker.end("completed")
    world.clock.advance(3600)
    world.tick()
    assert world.job(job)["finished_at"] == ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    [attempt] = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"]
    shown = world.job(job)
    assert [attempt[key] for key in ("started_at", "ended_at")] == [shown[key] for key in ("started_at", "finished_at")]
    last = world.client.get(f"/v1/jobs/{job}/events?order=desc&limit=1").json()["data"][0]
    assert (last["message"], last["created_at"]) == ("Completed all steps.", world.job(job)["finished_at"])


@pytest.mark.databases("sqlite", "postgres")
def test_event_of_the_end_is_not_dated_before_the_event_that_precedes_it(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.clock.advance(10)
    worker.end("completed")
    world.clock.advance(60)
    assert world.client.patch(f"/v1/jobs/{job}", json={"name": "renamed"}).status_code == 200
    renamed = world.clock()
    world.clock.advance(3600)
    world.tick()
    events = world.client.get(f"/v1/jobs/{job}/events?order=asc&limit=100").json()["data"]
    times = [event["created_at"] for event in events]
    assert times == sorted(times)
    assert times[-1] == renamed.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_no_conclusion_while_the_scheduler_is_unavailable(world: World) -> None:
    job = world.submit()
    world.start(job)
    world.scheduler.unavailable = True
    for _ in range(20):
        world.clock.advance(600)
        world.tick()
    assert world.status(job) == "running"


def test_wait_messages_use_job_names(world: World) -> None:
    first, second = world.submit(name="first"), world.submit(name="second")
    world.tick()
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[world.scheduler.submitted[1].tag] = Observation(
        "pending", f"behind {tag}", blocked_by=(tag,)
    )
    world.tick()
    assert world.job(second)["status_message"] == f"behind first ({first})"


def test_a_cancelled_job_ends_when_its_processes_have_ended(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.client.post(f"/v1/jobs/{job}/cancel")
    assert worker.post("heartbeat", {"execution": 1}).json()["stop"] == "cancel"
    world.tick(2)
    assert world.status(job) == "cancelling"
    assert len(world.scheduler.cancelled) == 2
    world.scheduler.set_states("ended")
    world.tick()
    shown = world.job(job)
    assert (shown["status"], shown["status_reason"]) == ("cancelled", "user_cancelled")


@pytest.mark.fault_scenario(32)
def test_a_cancel_during_an_ambiguous_submission_leaves_nothing_running(world: World) -> None:
    job = world.submit()
    world.scheduler.outcome = Ambiguous("killed")
    world.tick()
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert (world.status(job), world.scheduler.submitted) == ("cancelled", [])


def test_a_cancelled_attempt_can_not_be_claimed(world: World) -> None:
    job = world.submit()
    world.tick()
    worker = world.worker(job)
    world.client.post(f"/v1/jobs/{job}/cancel")
    assert worker.claim().json()["error"]["code"] == "claim_refused"


def test_a_preempted_job_continues_with_higher_executions(world: World) -> None:
    job = world.submit()
    first = world.start(job)
    first.checkpoint(10)
    first.end("preempted", step=10)
    world.tick()
    assert world.status(job) == "queued"
    world.tick()
    world.scheduler.set_states("running")
    second = world.worker(job)
    assert second.claim().json()["execution"] == 4, "1 and two possible restarts belong to the first attempt"
    assert world.job(job)["attempt"]["number"] == 2
    late = first.post("heartbeat", {"execution": 1})
    assert late.json()["stop"] == "cancel", "a zombie of an old attempt is told to go"


def test_errors_and_rank_restarts_share_the_retries(world: World) -> None:
    job = world.submit(restart={"max_retries": 2})
    failure = {"rank": 1, "type": "ValueError", "message": "boom", "traceback": "..."}
    world.start(job).end("error", failure=failure, restarts=1)
    world.tick()
    assert world.status(job) == "queued"
    world.tick()
    world.scheduler.set_states("running")
    second = world.worker(job)
    second.execution = second.claim().json()["execution"]
    second.end("error", failure=failure)
    world.tick()
    shown = world.job(job)
    assert (shown["status"], shown["status_reason"], shown["error"]["rank"]) == ("failed", "error", 1)
    assert shown["status_message"] == "rank 1: ValueError: boom"
    assert len(world.scheduler.submitted) == 2


def end_at_once(world: World, job: str, reason: str) -> None:
    """Let the next attempt of a job start, and end without progress."""
    world.tick()
    world.scheduler.set_states("running")
    worker = world.worker(job)
    worker.execution = worker.claim().json()["execution"]
    worker.end(reason)
    world.tick()


@pytest.mark.databases("sqlite", "postgres")
def test_three_time_limits_without_a_newer_checkpoint_end_the_job(world: World) -> None:
    job = world.submit()
    for reason in ("time_limit", "preempted", "time_limit", "time_limit"):
        assert world.status(job) == "queued"
        world.clock.advance(120)
        end_at_once(world, job, reason)
    shown = world.job(job)
    assert (shown["status"], shown["status_reason"]) == ("failed", "retries_exhausted")


def test_preemptions_during_startup_wait_longer_each_time_and_end_no_job(world: World) -> None:
    job = world.submit()
    end_at_once(world, job, "preempted")
    for minutes in (1, 2, 4):
        end_at_once(world, job, "preempted")
        world.tick()
        assert world.status(job) == "queued"
        assert "soon after their start, the last by: " in world.job(job)["status_message"]
        world.clock.advance(minutes * 60 - 10)
        world.tick()
        assert world.status(job) == "queued", f"the next attempt waits {minutes} min"
        world.clock.advance(10)
    world.tick()
    assert world.status(job) == "pending"
    world.clock.advance(8 * 86400)
    for _ in range(6):
        assert world.status(job) in ("pending", "queued")
        end_at_once(world, job, "preempted")
        world.clock.advance(1800)
    shown = world.job(job)
    assert (shown["status"], shown["status_reason"]) == ("failed", "retries_exhausted")
    world.client.post(f"/v1/jobs/{job}/retry")
    world.tick()
    assert world.status(job) == "pending", "a retry begins anew"


def test_program_without_steps_continues_after_any_number_of_time_limits(world: World) -> None:
    """It saves its own state, or not; nobody knows."""
    job = world.client.post("/v1/jobs", json=PROGRAM).json()["id"]
    for _ in range(5):
        assert world.status(job) == "queued"
        end_at_once(world, job, "time_limit")
    assert world.status(job) == "queued"


def test_program_without_newer_checkpoint_ends_after_three_time_limits(world: World) -> None:
    job = world.client.post("/v1/jobs", json=PROGRAM).json()["id"]
    checkpoints = RunLayout(world.settings.runs / job).checkpoints
    for newer in (True, True, True, True, False, False, False):
        assert world.status(job) == "queued"
        if newer:
            file = checkpoints / "state" / "model.bin"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
            for path in (file, file.parent):
                os.utime(path, (world.clock().timestamp() + 1,) * 2)
        end_at_once(world, job, "time_limit")
        world.clock.advance(10)
    assert world.status(job) == "failed"


def test_an_exit_record_on_disk_counts(world: World) -> None:
    job = world.submit()
    world.start(job)
    record = {"execution": 1, "reason": "completed", "step": 20, "time": "2026-01-01T00:00:00Z"}
    write_atomic(world.folder(job).finish(1), json.dumps(record))
    world.scheduler.set_states("ended")
    world.tick()
    assert world.status(job) == "succeeded"


def test_a_startup_error_is_read_from_the_schedulers_log(world: World) -> None:
    job = world.submit()
    world.tick()
    log = world.folder(job).root / "submitit" / "4_0_log.err"
    log.parent.mkdir(exist_ok=True)
    log.write_text("slurmstepd: error: execve(): /venv/bin/python: No such file or directory\nsrun: error: task 0\n")
    world.scheduler.set_states("ended")
    world.tick()
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    assert any("execve(): /venv/bin/python: No such file or directory" in event["message"] for event in events)


def test_a_claim_file_shows_that_the_worker_is_unreachable(world: World) -> None:
    job = world.submit()
    world.tick()
    world.folder(job).claim.write_text('{"nonce": "nonce-of-the-first", "host": "n1", "pid": 7}')
    world.scheduler.set_states("running")
    world.tick()
    assert (world.status(job), "cannot reach the service" in world.job(job)["status_message"]) == ("pending", True)


def test_a_hostile_run_directory_changes_nothing(world: World) -> None:
    job = world.submit()
    world.start(job)
    folder = world.folder(job)
    secret = world.settings.state / "admin_token"
    (folder.logs / "rank-0.log").symlink_to(secret)
    folder.finish(2).symlink_to(secret)
    folder.finish(1).write_text("x" * (2 << 20))
    (folder.root / "result.pkl").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    world.scheduler.set_states("ended")
    world.tick()
    assert world.job(job)["attempt"]["exit_reason"] == "node_failure"
    log = world.client.get(f"/v1/jobs/{job}/logs?attempt=1")
    assert world.token not in log.text


@pytest.mark.fault_scenario(31)
def test_scheduler_calls_are_independent_of_the_number_of_jobs(world: World) -> None:
    for _ in range(12):
        world.submit()
    world.tick()
    before = world.scheduler.observe_calls
    world.tick()
    assert world.scheduler.observe_calls == before + 1


@pytest.mark.databases("sqlite", "postgres")
def test_two_reconcilers_never_act_at_once(world: World) -> None:
    world.tick()
    second = world.new_reconciler("two")
    job = world.submit()
    assert second.run_once() is False
    assert world.status(job) == "queued"
    world.clock.advance(60)
    second.run_once()
    assert world.status(job) == "pending"
    world.reconciler.run_once()
    assert len(world.scheduler.submitted) == 1


def test_the_start_of_leadership_is_logged_once(world: World) -> None:
    world.tick()
    second = world.new_reconciler("two")
    with capture_logs() as lines:
        assert [second.run_once() for _ in range(2)] == [False, False]
        world.clock.advance(60)
        second.run_once()
        world.clock.advance(5)
        second.run_once()
    assert [line["event"] for line in lines].count("this service is the leader") == 1


def test_a_tick_loads_the_oldest_queued_jobs(world: World) -> None:
    first, second, third, fourth = [world.submit() for _ in range(4)]
    world.client.post(f"/v1/jobs/{fourth}/cancel")
    with world.database.read() as session:
        jobs = JobRepository(session, world.clock())
        assert [job.id for job, _ in jobs.list_active(2)] == [first, second, fourth], "something is to be done about it"
        assert [job.id for job, _ in jobs.list_active()] == [first, second, third, fourth]


def test_waiting_sweep_members_do_not_block_other_jobs(world: World) -> None:
    body = {"spec": SPEC, "grid": {"seed": [1, 2, 3]}, "max_parallel": 1}
    answer = world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 201, answer.text
    members = {member["job_id"] for member in answer.json()["members"]}
    alone = world.submit()
    with world.database.read() as session:
        observed = {job.id for job, _ in JobRepository(session, world.clock()).list_active(1)}
    assert observed == {alone, *members}
