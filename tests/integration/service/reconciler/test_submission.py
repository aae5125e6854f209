"""Submission in other threads: a tick does not wait for sbatch, and late answers are fenced."""

import json
import threading

import pytest

from service.core.errors import LeaseLostError
from service.db.leader_lease import LeaderLease
from service.reconciler.submission.pool import SubmitPool
from service.scheduler.base import Accepted, Ambiguous, LaunchPlan, Observation, Postponed, Rejected, SubmitOutcome
from tests.support.wait import wait_until
from tests.support.world import FakeScheduler, World
from trainyard.contract.layout import write_atomic
from trainyard.contract.wire.reports import Claim

pytestmark = pytest.mark.databases("sqlite")


class HangingScheduler(FakeScheduler):
    """Its sbatch hangs until it is let go."""

    def __init__(self) -> None:
        super().__init__(name="slurm")
        self.requested = threading.Event()
        self.go = threading.Event()

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        self.requested.set()
        assert self.go.wait(30)
        return super().submit(plan)


@pytest.fixture
def hanging(world: World) -> HangingScheduler:
    """The world's scheduler, whose answers come from threads."""
    world.scheduler = HangingScheduler()
    world.reconciler = world.new_reconciler("one", SubmitPool(threads=2))
    return world.scheduler


@pytest.mark.fault_scenario(6)
def test_hanging_sbatch_delays_no_other_job(world: World, hanging: HangingScheduler) -> None:
    blocked = world.submit()
    world.tick()
    assert hanging.requested.wait(10)
    other = world.submit()
    world.client.post(f"/v1/jobs/{other}/cancel")
    world.tick(3)
    assert (world.status(blocked), world.status(other)) == ("submitting", "cancelled")
    hanging.go.set()
    wait_until(lambda: (world.tick(), world.status(blocked) == "pending")[1], 10, "its id to be recorded")
    assert len(hanging.submitted) == 1


def test_slow_submission_is_reported(world: World, hanging: HangingScheduler) -> None:
    job = world.submit()
    world.tick()
    assert hanging.requested.wait(10)
    world.clock.advance(50)
    world.tick()
    assert world.job(job)["status_message"] == "Submitting to the scheduler (slurm)."
    world.clock.advance(10)
    world.tick(2)
    assert "more than a minute" in world.job(job)["status_message"]
    hanging.go.set()
    wait_until(lambda: (world.tick(), world.status(job) == "pending")[1], 10, "its id to be recorded")


@pytest.mark.databases("sqlite", "postgres")
def test_concurrent_submissions_are_limited(world: World, hanging: HangingScheduler) -> None:
    jobs = [world.submit() for _ in range(4)]
    world.tick()
    assert [world.status(job) for job in jobs] == ["submitting", "submitting", "queued", "queued"]
    hanging.go.set()
    wait_until(lambda: (world.tick(), len(hanging.submitted) == 4)[1], 10, "all to be submitted")
    wait_until(lambda: (world.tick(), {world.status(job) for job in jobs} == {"pending"})[1], 10, "their ids")
    assert len({plan.tag for plan in hanging.submitted}) == 4


@pytest.mark.fault_scenario(32)
def test_cancel_during_submission_leaves_no_scheduler_job(world: World, hanging: HangingScheduler) -> None:
    job = world.submit()
    world.tick()
    assert hanging.requested.wait(10)
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick(2)
    assert world.status(job) == "submitting", "the answer may come soon"
    hanging.go.set()
    wait_until(lambda: (world.tick(), bool(hanging.cancelled))[1], 10, "what was queued to be cancelled")
    hanging.set_states("ended")
    world.tick(2)
    assert world.status(job) == "cancelled"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cancel_does_not_wait_for_sbatch(world: World, hanging: HangingScheduler, restarts: bool) -> None:
    job = world.submit()
    world.tick()
    assert hanging.requested.wait(10)
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.clock.advance(10)
    world.tick()
    assert world.status(job) == "cancelled"
    assert world.job(job)["status_message"].endswith("is removed from its queue.")
    if restarts:
        world.reconciler = world.new_reconciler("one", SubmitPool(threads=2))
    hanging.go.set()
    wait_until(lambda: (world.tick(), bool(hanging.cancelled))[1], 10, "what was queued to be cancelled")
    (plan,) = hanging.submitted
    assert hanging.cancelled[0] == plan.tag
    world.clock.advance(600)
    for _ in range(4):
        world.tick()
        world.clock.advance(60)
    assert not world.reconciler._submitter.may_have_withdrawn, "the search has an end"
    assert world.status(job) == "cancelled"


def test_shutdown_records_answers_and_releases_the_lease(world: World, hanging: HangingScheduler) -> None:
    job = world.submit()
    world.tick()
    hanging.go.set()
    world.reconciler.close()
    assert world.job(job)["attempt"]["scheduler_id"] is not None
    second = LeaderLease(world.database, "two")
    assert second.acquire(world.clock()), "the next service need not wait for the lease to expire"


@pytest.mark.fault_scenario(2)
def test_crash_before_the_announcement_costs_no_wait(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    world.fail_at("submit.after-intent")
    with pytest.raises(SystemExit):
        world.tick()
    world.reconciler = world.new_reconciler("one")
    world.tick()
    assert (world.status(job), len(world.scheduler.submitted)) == ("pending", 1)


def lose_answer(world: World) -> tuple[str, LaunchPlan]:
    """Kill the service before it has sbatch's answer, while the queue does not list the job."""
    world.scheduler.name = "slurm"
    job = world.submit()
    world.fail_at("submit.after-answer")
    with pytest.raises(SystemExit):
        world.tick()
    world.scheduler.states.clear()
    return job, world.scheduler.submitted[0]


def test_a_cancelled_job_is_removed_although_its_folder_has_a_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, plan = lose_answer(world)
    claim = Claim(nonce="nonce-0001", host="node1", pid=7, scheduler_id="17")
    write_atomic(world.folder(job).claim, claim.model_dump_json())
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.reconciler = world.new_reconciler("one")
    world.tick()
    assert world.status(job) == "cancelled"
    monkeypatch.setattr(world.scheduler, "find", lambda *_: ["17"])
    world.clock.advance(60)
    world.tick()
    assert world.scheduler.cancelled == [plan.tag]


@pytest.mark.parametrize("answer", [Accepted("4711"), Rejected("no such QOS"), Postponed("the queue is full")])
def test_a_restarted_service_reads_the_answer_of_the_submitter(world: World, answer: SubmitOutcome) -> None:
    job, plan = lose_answer(world)
    world.scheduler.recorded[plan.submission] = answer
    world.reconciler = world.new_reconciler("one")
    world.tick()
    resource = world.job(job)
    expected = {Accepted: "pending", Rejected: "failed", Postponed: "submitting"}
    assert resource["status"] == expected[type(answer)]
    assert resource["attempt"]["scheduler_id"] == (answer.scheduler_id if isinstance(answer, Accepted) else None)
    assert len(world.scheduler.submitted) == 1


def test_a_search_for_a_submission_states_its_end(world: World) -> None:
    job, _ = lose_answer(world)
    world.reconciler = world.new_reconciler("one")
    world.tick()
    condition = world.job(job)["condition"]
    assert condition["code"] == "unconfirmed"
    assert condition["data"]["cause"] == "the service ended before the answer"
    assert condition["data"]["until"] in world.job(job)["status_message"]


@pytest.mark.databases("sqlite", "postgres")
def test_unanswered_submission_is_awaited_to_its_deadline(world: World) -> None:
    """The submitter outlives a service that was killed: sbatch may still be asked while the next service looks."""
    world.scheduler.name = "slurm"
    world.submit()
    world.fail_at("prepare.after-files")
    with pytest.raises(SystemExit):
        world.tick()
    world.reconciler = world.new_reconciler("one")
    for _ in range(8):
        world.tick()
        world.clock.advance(59)
    assert world.scheduler.submitted == [], "480 s after it was asked"
    world.clock.advance(60)
    world.tick()
    assert len(world.scheduler.submitted) == 1


@pytest.mark.databases("sqlite", "postgres")
def test_absence_is_confirmed_from_the_last_submission(world: World) -> None:
    world.scheduler.name = "slurm"
    world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    for _ in range(3):
        world.clock.advance(60)
        world.tick()
    world.scheduler.outcome = None
    for _ in range(2):
        world.clock.advance(60)
        world.tick()
        assert world.scheduler.submitted == [], "it was asked a second time less than 180 s ago"
    world.clock.advance(120)
    world.tick()
    assert len(world.scheduler.submitted) == 1


@pytest.mark.fault_scenario(24)
def test_full_disk_is_retried(world: World) -> None:
    job = world.submit()
    blocked = world.settings.runs / job
    blocked.write_text("a file where the folder should be")
    world.tick(2)
    assert world.status(job) == "submitting"
    assert "the run directory cannot be written" in world.job(job)["status_message"]
    blocked.unlink()
    world.tick()
    assert (world.status(job), len(world.scheduler.submitted)) == ("pending", 1)


def test_nothing_is_submitted_during_a_scheduler_outage(world: World) -> None:
    first = world.submit()
    world.tick()
    world.scheduler.unavailable = True
    second = world.submit()
    world.tick(3)
    assert (world.status(first), world.status(second)) == ("pending", "queued")
    world.scheduler.unavailable = False
    world.tick()
    assert world.status(second) == "pending"


@pytest.mark.fault_scenario(9)
def test_former_leader_writes_nothing(world: World) -> None:
    job = world.submit()
    old = LeaderLease(world.database, "one")
    assert old.acquire(world.clock())
    world.clock.advance(60)
    new = LeaderLease(world.database, "two")
    assert new.acquire(world.clock())
    assert new.term == (old.term or 0) + 1
    with pytest.raises(LeaseLostError), old.write():
        pytest.fail("a former leader was let in")
    assert world.status(job) == "queued"


@pytest.mark.fault_scenario(9)
def test_former_leader_does_not_overwrite_an_answer(world: World, hanging: HangingScheduler) -> None:
    job = world.submit()
    world.tick()
    assert hanging.requested.wait(10)
    world.clock.advance(60)
    second = world.new_reconciler("two")
    second.run_once()
    hanging.go.set()
    world.reconciler.close()
    assert world.status(job) == "submitting", "the old leader's answer is dropped"
    world.clock.advance(60)
    second.run_once()
    assert world.status(job) == "pending", "and found again by the new one"
    assert len(hanging.submitted) == 1


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.fault_scenario(44)
def test_rejection_lifts_the_node_exclusion(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.end("node_failure", failure={"type": "NodeVanished", "message": "gone", "node": "n7", "consequence": True})
    world.scheduler.outcome = Rejected("Requested node configuration is not available")
    world.tick(2)
    assert world.status(job) == "submitting"
    world.scheduler.outcome = None
    world.tick(2)
    assert world.status(job) == "pending"
    kinds = [event["type"] for event in world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]]
    assert {"node_excluded", "node_exclusion_lifted"} <= set(kinds)


def test_a_refusal_does_not_end_a_job_that_was_accepted_before(world: World) -> None:
    """Slurm ends what waits in a partition that is renamed, and refuses the next attempt."""
    job = world.submit()
    world.tick()
    assert world.status(job) == "pending"
    (tag,) = world.scheduler.states
    world.scheduler.states[tag] = Observation("ended", "Slurm: NODE_FAIL", end_state="node_failure")
    world.scheduler.outcome = Rejected("Batch job submission failed: Invalid partition name specified")
    world.tick(2)
    assert world.job(job)["attempt"]["number"] == 2
    assert (world.status(job), world.job(job)["condition"]["code"]) == ("submitting", "refused_for_now")
    world.scheduler.outcome = None
    world.clock.advance(60)
    world.tick()
    assert world.status(job) == "pending"


def test_failed_node_is_excluded_from_the_next_attempt(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.end("node_failure", failure={"type": "NodeVanished", "message": "gone", "node": "n7", "consequence": True})
    world.tick(2)
    document = world.folder(job, 2).launch.read_text()
    assert '"excluded_nodes": [\n    "n7"\n  ]' in document
    (event,) = [
        event
        for event in world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
        if event["type"] == "node_excluded"
    ]
    assert event["message"] == (
        "Node n7 is excluded from the next attempt, because it probably caused the failure of attempt 1"
    )


@pytest.mark.parametrize("name", ["n7,n8", "n[1-99]", "a b", "x\n#SBATCH", "", "-n", "n" * 65])
def test_invalid_node_names_are_not_excluded(world: World, name: str) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.end("node_failure", failure={"type": "NodeVanished", "message": "gone", "node": name, "consequence": True})
    world.tick(2)
    assert '"excluded_nodes": []' in world.folder(job, 2).launch.read_text()


@pytest.mark.fault_scenario(8)
def test_claimant_of_two_scheduler_jobs_is_followed(world: World) -> None:
    """The first was accepted without an answer and stayed unseen; the second is the one whose id came back."""
    world.scheduler.name = "slurm"
    job = world.submit()
    world.tick()
    world.worker(job).claim("nonce-of-the-first", "17")
    assert world.job(job)["attempt"]["scheduler_id"] == "17"
    kinds = [event["message"] for event in world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]]
    assert "Scheduler job: 17" in kinds


@pytest.mark.fault_scenario(8)
def test_end_of_a_duplicate_does_not_end_the_attempt(world: World) -> None:
    """Its claim was decided by files while the service was away."""
    world.scheduler.name = "slurm"
    job = world.submit()
    world.tick()
    claim = {"nonce": "nonce-of-the-first", "host": "n1", "pid": 7, "scheduler_id": "17"}
    write_atomic(world.folder(job).claim, json.dumps(claim))
    world.scheduler.set_states("ended")
    world.tick()
    assert (world.status(job), world.job(job)["attempt"]["scheduler_id"]) == ("pending", "17")


@pytest.mark.parametrize("outcome", [Rejected("no"), Ambiguous("who knows")])
def test_late_answer_does_not_change_a_running_job(
    outcome: SubmitOutcome, world: World, hanging: HangingScheduler
) -> None:
    job = world.submit()
    world.tick()
    assert hanging.requested.wait(10)
    hanging.outcome = outcome
    world.worker(job).claim("nonce-of-the-first", "17")
    hanging.go.set()
    world.reconciler.close()
    assert (world.status(job), world.job(job)["attempt"]["scheduler_id"]) == ("running", "17")


class TestSlowDisk:
    """Writing the files takes longer than the announcement of the submission is valid."""

    @pytest.fixture
    def slow(self, world: World) -> World:
        """Return a world in which writing the files of an attempt takes 100 seconds."""
        world.scheduler.name = "slurm"
        world.reconciler = world.new_reconciler("one")
        world.app_state.failpoint = lambda label: world.clock.advance(100) if label == "prepare.after-files" else None
        return world

    def test_submission_is_announced_again_and_not_lost(self, slow: World) -> None:
        job = slow.submit()
        slow.tick(2)
        assert (slow.status(job), len(slow.scheduler.submitted)) == ("pending", 1)

    def test_submission_is_left_to_the_next_leader_after_the_lease(self, slow: World) -> None:
        slow.submit()

        def taken_over(label: str) -> None:
            if label == "prepare.after-files":
                slow.clock.advance(100)
                assert LeaderLease(slow.database, "two").acquire(slow.clock())

        slow.app_state.failpoint = taken_over
        slow.tick()
        assert slow.scheduler.submitted == []


@pytest.mark.databases("sqlite", "postgres")
def test_launcher_without_exit_record_uses_retries(world: World) -> None:
    job = world.submit(restart={"max_retries": 3})
    worker = world.start(job)
    for execution in (1, 2, 3):
        worker.execution = execution
        assert worker.metrics([("train/loss", execution, 1.0)]).status_code == 200
    world.scheduler.set_states("ended")
    world.tick(2)
    assert json.loads(world.folder(job, 2).launch.read_text())["max_restarts"] == 1
    worker = world.start(job)
    worker.execution = 5
    worker.end("error", failure={"type": "ValueError", "message": "bad"})
    world.tick()
    assert "(1 left)" in world.job(job)["status_message"]


def test_workers_that_started_and_vanished_exclude_no_node(world: World) -> None:
    job = world.submit()
    for number in (1, 2, 3):
        worker = world.start(job)
        worker.checkpoint(number)
        tag = world.scheduler.submitted[-1].tag
        observation = Observation("ended", "Slurm: FAILED, exit code 0:9", (f"n{number}",), end_state="failed")
        world.scheduler.states[tag] = observation
        world.tick()
        assert world.status(job) == "queued"
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    assert [event for event in events if event["type"] == "node_excluded"] == []


@pytest.mark.parametrize(
    ("error", "excluded"),
    [
        ("/opt/python: error while loading shared libraries: libssl.so.3", ["n1"]),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/runs/job_1/attempts/1/launch.json'", []),
        ("OSError: [Errno 28] No space left on device", []),
    ],
)
@pytest.mark.fault_scenario(50)
def test_node_that_cannot_start_a_worker_is_excluded(world: World, error: str, excluded: list[str]) -> None:
    job = world.submit()
    world.tick()
    log = world.folder(job).submitit / "7_0_log.err"
    log.parent.mkdir(exist_ok=True)
    log.write_text(error + "\n")
    tag = world.scheduler.submitted[-1].tag
    world.scheduler.states[tag] = Observation("ended", "Slurm: FAILED, exit code 1:0", ("n1",), end_state="failed")
    world.tick(2)
    assert json.loads(world.folder(job, 2).launch.read_text())["excluded_nodes"] == excluded
