"""Queued jobs of one user do not hold up those of another."""

from datetime import datetime
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from service.jobs.conditions import Condition
from service.jobs.repository import JobRepository
from service.reconciler import spool_ingest
from service.reconciler.spool_ingest import JOB_SECONDS, MIN_SECONDS, USER_SECONDS, SpoolIngest
from service.reconciler.submission.checks import CheckedJob, SubmissionChecks
from service.reconciler.submission.pool import SubmitPool
from service.reconciler.submission.user_time import UserTimeBudget
from tests.support.world import SPEC, World


def submit(user: TestClient, count: int, name: str = "parity") -> list[str]:
    answers = [user.post("/v1/jobs", json={**SPEC, "name": name}) for _ in range(count)]
    assert {answer.status_code for answer in answers} == {201}
    return [answer.json()["id"] for answer in answers]


def submitted(world: World) -> list[str]:
    """The ids of the submitted jobs, in order."""
    return [plan.folder.parent.parent.name for plan in world.scheduler.submitted]


def test_tick_loads_the_oldest_queued_jobs_of_each_user(world: World) -> None:
    older = submit(world.new_user("user", "anna"), 5)
    newer = submit(world.new_user("user", "bert"), 1)
    world.new_user("viewer", "carl")
    for limit, expected in ((2, [older[0], *newer]), (4, [*older[:2], *newer])):
        with world.database.read() as session:
            loaded = JobRepository(session, world.clock()).list_active(limit)
        assert [job.id for job, _ in loaded] == expected


def test_jobs_that_wait_take_turns_and_block_no_other_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = submit(world.client, 5)
    with world.database.write() as session:
        jobs = JobRepository(session, world.clock())
        for job in refused:
            jobs.set_condition(jobs.get(job), Condition("refusals"))
    (ready,) = submit(world.client, 1)
    monkeypatch.setattr("service.reconciler.reconciler._QUEUED_PER_TICK", 2)
    reconciler = world.new_reconciler("two", SubmitPool(threads=1))
    loaded = [[entry.job.id for entry in reconciler._load(all_queued=False)[0]] for _ in range(4)]
    assert loaded == [[*turn, ready] for turn in (refused[:2], refused[2:4], refused[4:], refused[:2])]


@pytest.mark.databases("sqlite")
def test_users_are_served_in_turns(world: World) -> None:
    older = submit(world.new_user("user", "anna"), 3)
    newer = submit(world.new_user("user", "bert"), 2)
    world.tick()
    assert submitted(world) == [older[0], newer[0], older[1], newer[1], older[2]]


@pytest.mark.databases("sqlite")
def test_expensive_checks_of_one_user_delay_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    check = SubmissionChecks.check

    def check_slowly(checks: SubmissionChecks, job_pk: int) -> CheckedJob:
        checked = check(checks, job_pk)
        now[0] += 5.0 if checked.accepted.spec.name == "expensive" else 0.001
        return checked

    monkeypatch.setattr(SubmissionChecks, "check", check_slowly)
    world.reconciler._submitter.turns = UserTimeBudget(clock=lambda: now[0])
    expensive = submit(world.new_user("user", "anna"), 3, "expensive")
    cheap = submit(world.new_user("user", "bert"), 3)
    world.tick()
    assert submitted(world) == [expensive[0], *cheap]
    world.tick(2)
    assert submitted(world) == [expensive[0], *cheap, *expensive[1:]]


@pytest.mark.databases("sqlite")
def test_long_spools_of_one_user_leave_time_to_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    given: list[float] = []

    def use_all_time(_ingest: SpoolIngest, _now: datetime, seconds: float) -> bool:
        given.append(seconds)
        now[0] += seconds
        return True

    monkeypatch.setattr(spool_ingest, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(SpoolIngest, "run", use_all_time)
    jobs = [*submit(world.new_user("user", "anna"), 3), *submit(world.new_user("user", "bert"), 1)]
    workers = [world.start(job) for job in jobs]
    assert {worker.finish("completed").status_code for worker in workers} == {200}
    world.scheduler.set_states("ended")
    world.tick()
    assert USER_SECONDS == 2 * JOB_SECONDS
    assert given == [JOB_SECONDS, JOB_SECONDS, MIN_SECONDS, JOB_SECONDS]
