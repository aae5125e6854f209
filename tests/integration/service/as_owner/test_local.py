"""The local scheduler where jobs run as their owners."""

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from service.as_owner.calls import OwnerCalls
from service.scheduler.base import Accepted, LaunchPlan, Observation, SubmittedJob
from service.scheduler.local import scheduler as local
from service.scheduler.local.processes import tagged_processes
from service.scheduler.local.scheduler import LocalScheduler
from tests.support import local_service
from tests.support.live import wait_for_status
from tests.support.owners import OwnerService, UnixUser
from tests.support.wait import wait_until
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE
from trainyard.contract.spec.templates import fill_template

ROOT = Path(__file__).parents[4]
TAG, OTHER_TAG = "ty-main-00ff", "ty-main-00ee"
ONE_RANK = {"gpus": 1, "strategy": "single", "epochs": None, "steps": 3}


@pytest.fixture
def scheduler(calls: OwnerCalls, tmp_path: Path, people: list[UnixUser]) -> Iterator[LocalScheduler]:
    yield LocalScheduler(tmp_path, 2, lambda: datetime.now(UTC), owners=calls, target="tests.support.jobs:wait")
    for each in people:
        subprocess.run(["pkill", "-KILL", "-u", each.name], check=False)


@pytest.fixture
def plan(calls: OwnerCalls, people: list[UnixUser], python: Path, runs: Path) -> LaunchPlan:
    return make_plan(calls, people[0], python, runs / "job_01", TAG)


@pytest.fixture
def plan_of_another(calls: OwnerCalls, people: list[UnixUser], python: Path, runs: Path) -> LaunchPlan:
    return make_plan(calls, people[1], python, runs / "job_02", OTHER_TAG)


def make_plan(calls: OwnerCalls, user: UnixUser, python: Path, run: Path, tag: str) -> LaunchPlan:
    """Return the plan of an attempt of an account, whose folder exists."""
    calls.write(user.uid, run.parent, run.name, folders=["attempts", "attempts/1", "attempts/1/submitit"])
    environment = {"PATH": os.environ["PATH"], ATTEMPT_VARIABLE: tag.rpartition("-")[2], "PYTHONPATH": str(ROOT)}
    return LaunchPlan(tag, run / "attempts" / "1", 1, environment, "", python=str(python), uid=user.uid)


def at_start(user: UnixUser, statement: str) -> Path:
    """Return a folder with a module that makes each submitter of the account run a statement first."""
    folder = user.home / secrets.token_hex(4)
    folder.mkdir()
    condition = "'service.scheduler.local.submit' in sys.orig_argv"
    (folder / "sitecustomize.py").write_text(f"import os, signal, sys, time\nif {condition}:\n    {statement}\n")
    return folder


def with_path(plan: LaunchPlan, folder: Path) -> LaunchPlan:
    return replace(plan, environment={**plan.environment, "PYTHONPATH": f"{folder}:{ROOT}"})


def observe(scheduler: LocalScheduler, plan: LaunchPlan) -> Observation:
    job = SubmittedJob(plan.tag, plan.tag, plan.folder, plan.uid)
    return scheduler.observe([job])[plan.tag]


def is_running(scheduler: LocalScheduler, plan: LaunchPlan) -> bool:
    return observe(scheduler, plan).state == "running"


@contextmanager
def stopping(user: UnixUser) -> Iterator[set[int]]:
    """Stop every process of an account as soon as it is seen, as the account itself can; yield their pids."""
    stopped: set[int] = set()
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.02):
            for entry in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if entry.stat().st_uid == user.uid:
                        os.kill(int(entry.name), signal.SIGSTOP)
                        stopped.add(int(entry.name))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()


def processes_of(user: UnixUser) -> list[psutil.Process]:
    own = [each for each in psutil.process_iter(["uids", "status"]) if each.info["uids"].real == user.uid]
    return [each for each in own if each.info["status"] != psutil.STATUS_ZOMBIE]


def open_files(user: UnixUser) -> set[str]:
    """Return the paths of all files that processes of an account have open."""
    paths = set()
    for process in processes_of(user):
        with suppress(OSError):
            for file in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    paths.add(os.readlink(file))
    return paths


def test_a_job_runs_as_its_owner_and_is_cancelled(
    scheduler: LocalScheduler, plan: LaunchPlan, people: list[UnixUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scheduler.submit(plan) == Accepted(TAG)
    wait_until(lambda: tagged_processes("00ff", people[0].uid), 10, "its processes")
    assert tagged_processes("00ff", 0) == []
    wait_until(lambda: is_running(scheduler, plan), 10, "its record")
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
        wait_until(lambda: observe(scheduler, plan).state == "ended", 10, "its end")
        scheduler.cancel(SubmittedJob(TAG, TAG, plan.folder, plan.uid))
        assert victim.poll() is None
        victim.kill()


def test_a_failed_start_is_reported(scheduler: LocalScheduler, plan: LaunchPlan, people: list[UnixUser]) -> None:
    broken = replace(plan, python="/nonexistent")
    scheduler.submit(broken)
    wait_until(lambda: "nonexistent" in observe(scheduler, plan).message, 10, "the message")


@pytest.mark.cpu_seconds(5)
def test_an_owner_who_stops_each_process_of_a_start_delays_nobody_else(
    scheduler: LocalScheduler,
    plan: LaunchPlan,
    plan_of_another: LaunchPlan,
    people: list[UnixUser],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_SUBMITTER_SECONDS", 4.0)
    with stopping(people[0]) as stopped:
        began = time.monotonic()
        assert scheduler.submit(plan) == Accepted(TAG)
        assert time.monotonic() - began < 3, "the start of one owner delays the submissions of all"
        wait_until(lambda: stopped, 10, "its helper")
        assert scheduler.submit(plan_of_another) == Accepted(OTHER_TAG)
        wait_until(lambda: is_running(scheduler, plan_of_another), 20, "the job of another owner")
        wait_until(lambda: observe(scheduler, plan).state == "ended", 60, "the end of what never started")
        assert stopped
        wait_until(lambda: not processes_of(people[0]), 5, "the end of its processes")
    assert not (plan.folder / "ran").exists()


def test_a_stopped_submitter_holds_no_lock_and_is_ended(
    scheduler: LocalScheduler,
    plan: LaunchPlan,
    plan_of_another: LaunchPlan,
    people: list[UnixUser],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_SUBMITTER_SECONDS", 6.0)
    scheduler.submit(with_path(plan, at_start(people[0], "os.kill(os.getpid(), signal.SIGSTOP)")))
    wait_until(lambda: tagged_processes("00ff", people[0].uid), 10, "the submitter")
    (submitter,) = tagged_processes("00ff", people[0].uid)
    wait_until(lambda: submitter.status() == psutil.STATUS_STOPPED, 10, "its stop")
    assert not [path for path in open_files(people[0]) if path.startswith(str(tmp_path / "local"))]
    assert scheduler.submit(plan_of_another) == Accepted(OTHER_TAG)
    wait_until(lambda: is_running(scheduler, plan_of_another), 20, "the job of another owner")
    wait_until(lambda: observe(scheduler, plan).state == "ended", 60, "the end of what never started")
    assert not processes_of(people[0])


def test_a_start_that_outlives_the_service_is_not_repeated(
    scheduler: LocalScheduler, plan: LaunchPlan, people: list[UnixUser], tmp_path: Path
) -> None:
    slow = with_path(plan, at_start(people[0], "time.sleep(1.5)"))
    service = local_service.start("submit", tmp_path, slow)
    wait_until(lambda: tagged_processes("00ff", people[0].uid), 10, "the submitter")
    service.kill()
    service.communicate()
    assert observe(scheduler, slow).state == "pending"
    wait_until(lambda: is_running(scheduler, slow), 20, "the start")
    entry = json.loads((tmp_path / "local" / "queue" / f"{TAG}.json").read_text())
    assert entry["starts"] == 1
    wait_until((plan.folder / "ran").exists, 10, "the job")
    assert len((plan.folder / "ran").read_text().split()) == 1


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
