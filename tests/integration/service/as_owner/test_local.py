"""The local scheduler where jobs run as their owners."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.as_owner.calls import OwnerCalls
from service.scheduler.base import Accepted, LaunchPlan, SubmittedJob
from service.scheduler.local import scheduler as local
from service.scheduler.local.processes import tagged_processes
from service.scheduler.local.scheduler import LocalScheduler
from tests.support.live import wait_for_status
from tests.support.owners import OwnerService, UnixUser
from tests.support.wait import wait_until
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE
from trainyard.contract.spec.templates import fill_template

ROOT = Path(__file__).parents[4]
TAG = "ty-main-00ff"
ONE_RANK = {"gpus": 1, "strategy": "single", "epochs": None, "steps": 3}


@pytest.fixture
def scheduler(calls: OwnerCalls, tmp_path: Path, people: list[UnixUser]) -> Iterator[LocalScheduler]:
    yield LocalScheduler(tmp_path, 2, lambda: datetime.now(UTC), owners=calls, target="tests.support.jobs:wait")
    for each in people:
        subprocess.run(["pkill", "-KILL", "-u", each.name], check=False)


@pytest.fixture
def plan(calls: OwnerCalls, people: list[UnixUser], python: Path, runs: Path) -> LaunchPlan:
    """The plan of an attempt of the first account, whose folder exists."""
    calls.write(people[0].uid, runs, "job_01", folders=["attempts", "attempts/1", "attempts/1/submitit"])
    environment = {"PATH": os.environ["PATH"], ATTEMPT_VARIABLE: "00ff", "PYTHONPATH": str(ROOT)}
    folder = runs / "job_01" / "attempts" / "1"
    return LaunchPlan(TAG, folder, 1, environment, "", python=str(python), uid=people[0].uid)


def is_running(scheduler: LocalScheduler, plan: LaunchPlan) -> bool:
    job = SubmittedJob(plan.tag, plan.tag, plan.folder, plan.uid)
    return scheduler.observe([job])[plan.tag].state == "running"


def test_a_job_runs_as_its_owner_and_is_cancelled(
    scheduler: LocalScheduler, plan: LaunchPlan, people: list[UnixUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scheduler.submit(plan) == Accepted(TAG)
    wait_until(lambda: tagged_processes("00ff", people[0].uid), 10, "its processes")
    assert tagged_processes("00ff", 0) == []
    assert is_running(scheduler, plan)
    monkeypatch.setattr(local, "GRACE", local.GRACE * 0)
    scheduler.cancel(SubmittedJob(TAG, TAG, plan.folder, plan.uid))
    wait_until(lambda: not is_running(scheduler, plan), 10, "its end")
    assert tagged_processes("00ff", people[0].uid) == []
    for path in plan.folder.rglob("*"):
        assert path.lstat().st_uid == people[0].uid, path


def test_processes_of_others_with_the_same_tag_are_left_alone(
    scheduler: LocalScheduler, plan: LaunchPlan, people: list[UnixUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {ATTEMPT_VARIABLE: "00ff", "PATH": "/usr/bin:/bin"}
    with (
        subprocess.Popen(["sleep", "60"], env=environment) as of_root,
        subprocess.Popen(["sleep", "60"], env=environment, user=people[1].uid) as of_another,
    ):
        assert scheduler.submit(plan) == Accepted(TAG)
        wait_until(lambda: tagged_processes("00ff", people[0].uid), 10, "its processes")
        monkeypatch.setattr(local, "GRACE", local.GRACE * 0)
        scheduler.cancel(SubmittedJob(TAG, TAG, plan.folder, plan.uid))
        wait_until(lambda: not is_running(scheduler, plan), 10, "its end")
        assert (of_root.poll(), of_another.poll()) == (None, None)
        of_root.kill()
        of_another.kill()


def test_a_made_up_process_is_neither_followed_nor_ended(
    scheduler: LocalScheduler, plan: LaunchPlan, calls: OwnerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        answer = {"returncode": 0, "stdout": f'{{"pid": {victim.pid}}}'}
        monkeypatch.setattr(calls, "call", lambda *_, **__: answer)
        scheduler.submit(plan)
        job = SubmittedJob(TAG, TAG, plan.folder, plan.uid)
        assert scheduler.observe([job])[TAG].state == "ended"
        scheduler.cancel(job)
        assert victim.poll() is None
        victim.kill()


def test_a_failed_start_is_reported(scheduler: LocalScheduler, plan: LaunchPlan, people: list[UnixUser]) -> None:
    broken = replace(plan, python="/nonexistent")
    scheduler.submit(broken)
    job = SubmittedJob(TAG, TAG, plan.folder, plan.uid)
    observation = scheduler.observe([job])[TAG]
    assert "nonexistent" in observation.message, observation


@pytest.mark.slow
@pytest.mark.e2e
def test_jobs_of_two_users_run_as_their_owners(people: list[UnixUser], python: Path, runs: Path) -> None:
    service = OwnerService(runs.parent, python)
    service.start()
    try:
        with service.client() as admin:
            clients = [service.user_client(admin, each) for each in people[:2]]
            jobs = [client.submit(fill_template("mlp_parity", ONE_RANK)) for client in clients]
            for client, job, owner in zip(clients, jobs, people, strict=False):
                done = wait_for_status(client, job.id, "succeeded", "failed")
                assert done.status == "succeeded", (done.status_message, service.log_tail())
                run = RunLayout(runs / job.id)
                for path in [run.root, *run.root.rglob("*")]:
                    assert path.lstat().st_uid == owner.uid, path
                    assert path.is_symlink() or not path.stat().st_mode & 0o007, path
    finally:
        service.stop()


def test_a_service_of_an_ordinary_account_refuses_to_start(people: list[UnixUser], python: Path, runs: Path) -> None:
    account = people[2]
    os.chown(runs, account.uid, account.gid)
    runs.chmod(0o3733)
    service = OwnerService(runs.parent, python, account)
    service.start()
    wait_until(lambda: "trainyard: " in service.log_tail(), 20, "the service's message")
    assert "needs a service that runs as root" in service.log_tail()
    service.stop()
