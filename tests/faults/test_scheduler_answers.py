"""Scheduler answers that are late, repeated or lost, and clocks that are set back."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from service.core.errors import UnavailableError
from service.core.failpoints import no_failpoint
from service.reconciler.submission.pool import SubmitPool
from service.scheduler.base import Accepted, Ambiguous, LaunchPlan, Postponed, Rejected, SubmitOutcome, SubmittedJob
from tests.support.world import SPEC, FakeScheduler, World

pytestmark = pytest.mark.databases("postgres")


class DuplicateScheduler(FakeScheduler):
    """Has two entries of one name, of which the second claims during the lookup."""

    world: World
    job: str

    def find(self, tag: str, folder: Path, unconfirmed_tags: Sequence[str] = (), uid: int | None = None) -> list[str]:
        assert self.world.worker(self.job).claim("nonce-of-the-second", "18").status_code == 200
        return ["17", "18"]

    def cancel(self, job: SubmittedJob) -> None:
        self.cancelled.append(job.scheduler_id)


def test_entry_that_claims_is_not_cancelled_as_a_duplicate(world: World) -> None:
    world.scheduler = DuplicateScheduler(name="slurm", outcome=Ambiguous("Socket timed out"))
    world.reconciler = world.new_reconciler("one")
    world.scheduler.world, world.scheduler.job = world, world.submit()
    world.tick(2)
    assert world.job(world.scheduler.job)["attempt"]["scheduler_id"] == "18"
    assert world.scheduler.cancelled == ["17"]


def test_one_empty_search_does_not_resolve_a_second_ambiguous_submission(world: World) -> None:
    world.scheduler.name = "slurm"
    world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    for _ in range(3):
        world.clock.advance(60)
        world.fail_at("prepare.after-files")
        with suppress(SystemExit):
            world.tick()
    assert world.app_state.failpoint is no_failpoint, "it was asked again"
    world.scheduler.outcome, world.scheduler.unavailable = None, True
    world.reconciler = world.new_reconciler("one")
    for _ in range(20):
        world.clock.advance(60)
        world.tick()
    world.scheduler.unavailable = False
    for _ in range(2):
        world.tick()
        assert world.scheduler.submitted == [], "the controller has just come back"
        world.clock.advance(60)
    world.tick()
    assert len(world.scheduler.submitted) == 1


def test_rejections_are_recorded_after_a_database_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.scheduler.name = "slurm"
    jobs = [world.submit() for _ in range(2)]
    world.scheduler.outcome = Rejected("Slurm refused the job")
    record = type(world.reconciler._submitter)._record

    def away(*_args: object, **_more: object) -> None:
        raise UnavailableError("the database does not answer")

    monkeypatch.setattr(type(world.reconciler._submitter), "_record", away)
    with pytest.raises(UnavailableError):
        world.tick()
    monkeypatch.setattr(type(world.reconciler._submitter), "_record", record)
    world.tick()
    assert [world.status(job) for job in jobs] == ["failed", "failed"]


def test_unrecordable_answer_does_not_stop_later_ticks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.scheduler.name = "slurm"
    first, second = world.submit(), world.submit()
    numbers: list[int] = []
    record = type(world.reconciler._submitter)._record

    def odd(self: object, job_pk: int, *args: object, **more: object) -> object:
        numbers.append(job_pk)
        if job_pk == numbers[0]:
            raise KeyError("no such row")
        return record(self, job_pk, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.reconciler._submitter), "_record", odd)
    world.tick()
    assert (world.status(first), world.status(second)) == ("submitting", "pending")


class FullScheduler(FakeScheduler):
    """Rejects submissions for now, and counts them."""

    def __init__(self) -> None:
        super().__init__(name="slurm")
        self.offers = 0

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        self.offers += 1
        return Postponed("no more jobs until others have ended")


def test_deferred_submission_is_retried_with_backoff(world: World) -> None:
    full = world.scheduler = FullScheduler()
    world.reconciler = world.new_reconciler("one")
    job = world.submit()
    until = world.clock() + timedelta(seconds=600)
    while world.clock() < until:
        world.tick()
        world.clock.advance(4)
    assert world.status(job) == "submitting"
    assert "no more jobs until others have ended" in world.job(job)["status_message"]
    assert full.offers == 6, "after 0, 15, 45, 105, 225 and 465 seconds"
    world.clock.advance(-86400)
    world.tick()
    assert full.offers == 7, "a clock that is set back makes it no later"
    full.submit = FakeScheduler.submit.__get__(full)  # type: ignore[method-assign]
    world.clock.advance(240)
    world.tick()
    assert (world.status(job), len(full.submitted), world.job(job)["attempt"]["number"]) == ("pending", 1, 1)


@pytest.mark.cpu_seconds(6)
def test_site_that_refuses_many_jobs_is_called_ten_times_a_minute(world: World) -> None:
    full = world.scheduler = FullScheduler()
    world.reconciler = world.new_reconciler("one")
    jobs = [world.submit() for _ in range(5)]
    world.tick(2)
    jobs += [world.submit() for _ in range(15)]
    other = world.new_user("user", "another").post("/v1/jobs", json=SPEC).json()["id"]
    for minute in range(3):
        until, before = world.clock() + timedelta(seconds=59), full.offers if minute else 0
        while world.clock() < until:
            world.tick()
            world.clock.advance(1)
        assert 5 <= full.offers - before <= 10 + 3, "3 of them are of the other user"
    assert world.status(other) == "submitting"
    assert {world.status(job) for job in jobs} == {"submitting", "queued"}
    assert "refuses other jobs of the same user" in world.job(jobs[-1])["status_message"]
    full.submit = FakeScheduler.submit.__get__(full)  # type: ignore[method-assign]
    world.clock.advance(240)
    world.tick(4)
    assert {world.status(job) for job in jobs} == {"pending"}


def test_refusal_ends_only_a_job_that_has_never_run(world: World) -> None:
    lowered = Rejected("Slurm refused the job: Requested time limit is invalid", "Lower the limit.")
    ran = world.submit()
    world.start(ran).end("preempted")
    world.scheduler.outcome = lowered
    first = world.submit()
    world.tick(2)
    assert world.job(first)["status_reason"] == "rejected"
    assert world.status(ran) == "submitting"
    assert "Requested time limit is invalid" in world.job(ran)["status_message"]
    world.scheduler.outcome = None
    world.clock.advance(60)
    world.tick()
    assert (world.status(ran), world.job(ran)["attempt"]["number"]) == ("pending", 2)


def test_deferred_submission_is_cancelled_at_once(world: World) -> None:
    full = world.scheduler = FullScheduler()
    world.reconciler = world.new_reconciler("one")
    job = world.submit()
    world.tick()
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert (world.status(job), full.offers) == ("cancelled", 1)


@pytest.mark.fault_scenario(37)
def test_clock_set_back_delays_no_search_or_observation(world: World) -> None:
    """The clock was a day ahead at startup."""
    world.scheduler.name = "slurm"
    world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick(2)
    cluster_calls = world.scheduler.cluster_calls
    world.clock.advance(-86400)
    world.scheduler.outcome = None
    for _ in range(12):
        world.tick()
        world.clock.advance(60)
    assert len(world.scheduler.submitted) == 1
    assert world.scheduler.cluster_calls > cluster_calls


def test_a_submission_without_a_thread_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise RuntimeError("can't start new thread")

    world.scheduler.name = "slurm"
    world.reconciler = world.new_reconciler("one", SubmitPool(threads=2))
    job = world.submit()
    with monkeypatch.context() as patched:
        patched.setattr("service.reconciler.submission.pool.threading.Thread.start", full)
        world.tick()
    assert "can't start new thread" in world.job(job)["status_message"]
    world.tick()
    world.reconciler.close()
    assert world.status(job) == "pending"


class SlowScheduler(FakeScheduler):
    """Responds after another entry of the same name has claimed."""

    world: World
    job: str

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        assert self.world.worker(self.job).claim("nonce-of-the-first", "17").status_code == 200
        return Accepted("18")

    def cancel(self, job: SubmittedJob) -> None:
        self.cancelled.append(job.scheduler_id)


def test_an_entry_accepted_after_another_has_claimed_is_cancelled(world: World) -> None:
    world.scheduler = SlowScheduler(name="slurm")
    world.reconciler = world.new_reconciler("one", SubmitPool(threads=1))
    world.scheduler.world, world.scheduler.job = world, world.submit()
    world.tick()
    world.reconciler.close()
    assert world.status(world.scheduler.job) == "running"
    assert world.scheduler.cancelled == ["18"]
