"""Ends that the accounting explains minutes later: their causes are corrected, and nothing starts or ends by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa

from service.db.models import Attempt
from service.scheduler.base import Canceller, Observation, SchedulerUnavailableError, SubmittedJob
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

ROOT, ADA = Canceller("root", is_administrator=True), Canceller("ada")


@dataclass
class Records:
    """An accounting that has recorded no end yet."""

    end: Observation | None = None
    fails: bool = False
    queries: list[list[str]] = field(default_factory=list)

    def recorded_ends(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        self.queries.append([job.tag for job in jobs])
        if self.fails:
            raise SchedulerUnavailableError("sacct ended with 1")
        return {job.tag: self.end for job in jobs} if self.end else {}


@pytest.fixture
def records(world: World, monkeypatch: pytest.MonkeyPatch) -> Records:
    records = Records()
    monkeypatch.setattr(world.scheduler, "recorded_ends", records.recorded_ends, raising=False)
    return records


def cancelled(by: Canceller | None = None, **known: bool) -> Observation:
    message = f"Slurm: CANCELLED by {by.name}" if by else "Slurm: CANCELLED"
    known = {"unrecorded": by is None, **known}
    return Observation("ended", message, ("node1",), end_state="cancelled", canceller=by, **known)


def end_unexplained(world: World, job: str, **known: bool) -> None:
    """Let the job start, and nobody know who cancels it."""
    world.start(job)
    world.scheduler.states[world.scheduler.submitted[-1].tag] = cancelled(**known)
    world.tick()


def later(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    world.tick()


def explained(world: World, job: str) -> list[str]:
    events = world.client.get(f"/v1/jobs/{job}/events", params={"limit": 100}).json()["data"]
    return [event["message"] for event in events if event["type"] == "end_explained"]


def last_attempt(world: World, job: str) -> tuple[str, str]:
    attempt = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"][-1]
    return attempt["exit_reason"], attempt["scheduler_end"]


def cancelled_twice(world: World) -> str:
    job = world.submit()
    end_unexplained(world, job)
    end_unexplained(world, job)
    assert world.job(job)["status_message"].startswith("Cancelled outside Trainyard, such as by `scancel`")
    return job


def test_a_late_record_names_who_cancelled_the_job(world: World, records: Records) -> None:
    job = cancelled_twice(world)
    records.end = cancelled(ADA)
    later(world, 60)
    shown = world.job(job)
    cause = "Cancelled by ada with `scancel` (Slurm: CANCELLED by ada)"
    assert shown["status_message"] == f"{cause}. `trainyard retry` continues the job."
    assert (shown["status"], shown["status_reason"]) == ("cancelled", "cancelled_outside")
    assert last_attempt(world, job) == ("user_cancelled", "Slurm: CANCELLED by ada")
    assert sorted(explained(world, job)) == [f"Attempt {n}: c{cause[1:]}" for n in (1, 2)]
    later(world, 600)
    assert len(explained(world, job)) == 2, "each end is explained once"


@pytest.mark.databases("sqlite", "postgres")
def test_an_event_of_the_site_does_not_start_an_ended_job_again(world: World, records: Records) -> None:
    job = cancelled_twice(world)
    records.end = Observation("ended", "Slurm: CANCELLED by slurmctld", ("node1",), end_state="dropped")
    later(world, 60)
    message = "Not ended by a user: removed by Slurm's controller, not by a user (Slurm: CANCELLED by slurmctld)"
    assert world.job(job)["status_message"] == f"{message}. `trainyard retry` continues the job."
    assert (world.status(job), last_attempt(world, job)[0]) == ("cancelled", "preempted")
    assert world.client.post(f"/v1/jobs/{job}/retry").status_code == 202
    world.start(job)


def test_a_job_that_was_continued_goes_on(world: World, records: Records) -> None:
    job = world.submit()
    end_unexplained(world, job)
    world.start(job)
    records.end = cancelled(ADA)
    later(world, 60)
    assert world.status(job) == "running"
    (message,) = explained(world, job)
    assert message.endswith("The job has been continued; `trainyard cancel` ends it.")


def test_a_node_that_left_still_explains_what_root_cancelled(world: World, records: Records) -> None:
    job = world.submit()
    end_unexplained(world, job, node_left=True)
    records.end = cancelled(ROOT)
    later(world, 60)
    attempt = world.client.get(f"/v1/jobs/{job}/attempts").json()["data"][0]
    assert attempt["exit_reason"] == "node_failure"
    assert attempt["scheduler_end"] == "Slurm: CANCELLED by root; Slurm: CANCELLED"
    assert explained(world, job) == [], "it was judged so before"


def test_the_accounting_is_queried_for_a_day_and_ever_less_often(world: World, records: Records) -> None:
    job = world.submit()
    end_unexplained(world, job)
    records.fails = True

    def queries(times: int, interval: float) -> int:
        before = len(records.queries)
        for _ in range(times):
            later(world, interval)
        return len(records.queries) - before

    assert queries(30, 20) in range(4, 8), "in the first ten minutes"
    assert queries(20, 150) in range(4, 7), "in the next fifty"
    world.clock.advance(86400)
    assert queries(3, 600) == 0


def test_ends_that_the_scheduler_explained_are_not_queried(world: World, records: Records) -> None:
    job = world.submit()
    world.start(job)
    world.scheduler.states[world.scheduler.submitted[-1].tag] = cancelled(ADA)
    world.tick()
    later(world, 600)
    assert (world.status(job), records.queries) == ("cancelled", [])


@pytest.mark.databases("sqlite", "postgres")
def test_evidence_of_another_release_that_is_unknown_is_dropped(world: World, records: Records) -> None:
    job = cancelled_twice(world)
    with world.database.write() as session:
        first, second = session.scalars(sa.select(Attempt).order_by(Attempt.number))
        first.open_evidence = {**first.open_evidence, "end_state": "evaporated"}
        second.open_evidence = {**second.open_evidence, "new_field": 1}
    records.end = cancelled(ADA)
    later(world, 60)
    assert [message[:9] for message in explained(world, job)] == ["Attempt 2"]
    later(world, 600)
    assert len(records.queries) == 2, "nothing is open"
