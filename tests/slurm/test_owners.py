"""Jobs that run as the Unix accounts of their owners, on a real cluster, with real accounts."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import processes_of, wait_for_status
from tests.support.owners import OwnerService, UnixUser, open_folder, readable_python, sudo_rule, unix_users
from tests.support.packages import install
from tests.support.slurm_lab import SlurmLab
from tests.support.slurm_wrappers import install as install_wrapper
from tests.support.wait import wait_until
from trainyard.contract.layout import RunLayout

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="only root can make Unix accounts")]

PROGRAM = """
import os, sys, time
from pathlib import Path
names = ("HOME", "USER", "LOGNAME", "VIRTUAL_ENV", "SLURM_JWT")
with open(sys.argv[1], "a") as log:
    print(os.getuid(), os.environ["SLURM_JOB_ID"], *(os.environ.get(name) for name in names), file=log)
while os.path.exists(sys.argv[1] + ".wait"):
    time.sleep(0.1)
"""
Start = Callable[..., OwnerService]


@pytest.fixture(scope="module")
def people() -> Iterator[list[UnixUser]]:
    """Yield three accounts: two of users, and one of a service."""
    with unix_users(3) as made:
        yield made


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with readable_python() as made:
        yield made


@pytest.fixture
def folder(people: list[UnixUser]) -> Iterator[Path]:
    """Yield a folder that all can enter, in which `logs` is writable for all."""
    with open_folder() as made:
        (made / "logs").mkdir()
        (made / "logs").chmod(0o1777)
        (made / "code").mkdir(mode=0o755)
        (made / "code" / "who.py").write_text(PROGRAM)
        yield made


@pytest.fixture
def start(slurm: SlurmLab, folder: Path, python: Path) -> Iterator[Start]:
    """Return a function that starts a service as root or as an account."""
    with ExitStack() as stack:

        def make(account: UnixUser | None = None, **settings: str) -> OwnerService:
            quick = {"slurm_poll_seconds": "0.5", "slurm_max_poll_seconds": "2"}
            service = OwnerService(
                folder, python, account, backend="slurm", allowed_roots=str(folder), **(quick | settings)
            )
            stack.callback(service.stop)
            service.start()
            return service

        yield make


def spec(log: Path, **changes: Any) -> dict[str, Any]:
    """Return the spec of a script that appends its account to a log, and ends when `<log>.wait` is removed."""
    where = {"partition": "gpu", "gpus_per_node": 1}
    argv = [str(log.parents[1] / "code" / "who.py"), str(log)]
    return {
        "name": log.name,
        "task": "script",
        "argv": argv,
        "gpus": 1,
        "resources": where,
        **changes,
    }


def users_of(slurm: SlurmLab) -> dict[str, str]:
    """Return the user of each job that the controller lists, by its name."""
    lines = slurm.run("squeue", "--states=all", "--noheader", "-o", "%u|%j").splitlines()
    return {name: user for user, _, name in (line.partition("|") for line in lines)}


def run_as(user: UnixUser, *command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **options,
    )


def check_files(run: RunLayout, owner: UnixUser, group: int, other: UnixUser) -> None:
    """Check that a run belongs to its owner and the group of the service, and to nobody else."""
    for path in [run.root, *run.root.rglob("*")]:
        status = path.lstat()
        assert status.st_uid == owner.uid, path
        if not stat.S_ISLNK(status.st_mode):
            assert (status.st_gid, status.st_mode & 0o007) == (group, 0), path
        if stat.S_ISDIR(status.st_mode):
            assert stat.S_IMODE(status.st_mode) & 0o2750 == 0o2750, path
    assert run_as(other, "ls", str(run.root)).returncode != 0
    assert run_as(other, "ls", str(run.root.parent)).returncode != 0, "nobody lists the jobs of all"
    assert run_as(other, "rm", "-rf", str(run.root)).returncode != 0
    assert run.root.is_dir()


def check_two_users(service: OwnerService, slurm: SlurmLab, folder: Path, people: list[UnixUser], group: int) -> None:
    """Run a job of each of two users, and check whose they are."""
    with service.client() as admin:
        for number, owner in enumerate(people[:2]):
            log = folder / "logs" / f"of-{owner.name}"
            with service.user_client(admin, owner) as client:
                job = client.submit(spec(log))
                done = wait_for_status(client, job.id, "succeeded", "failed")
                assert done.status == "succeeded", (done.status_message, service.log_tail())
                (attempt,) = client.attempts(job.id)
            home, name = str(owner.home), owner.name
            expected = [str(owner.uid), str(attempt.scheduler_id), home, name, name, "None", "None"]
            assert log.read_text().splitlines() == [" ".join(expected)]
            assert log.stat().st_uid == owner.uid
            tag = f"ty-main-{attempt.id}"
            assert users_of(slurm)[tag] == name
            check_files(RunLayout(service.runs_dir / job.id), owner, group, people[1 - number])


def test_jobs_of_a_service_of_root_run_as_their_owners(
    start: Start, slurm: SlurmLab, folder: Path, people: list[UnixUser]
) -> None:
    check_two_users(start(), slurm, folder, people, group=os.getegid())


def test_jobs_of_an_ordinary_service_run_as_their_owners_by_sudo(
    start: Start, slurm: SlurmLab, folder: Path, people: list[UnixUser], python: Path
) -> None:
    install("sudo", "sudo")
    account = people[2]
    with sudo_rule(account, people[:2], python):
        service = start(account)
        check_two_users(service, slurm, folder, people, group=account.gid)
        check_cancel(service, slurm, folder, people[0])


def test_without_the_rule_of_sudo_the_job_waits_and_states_why(
    start: Start, folder: Path, people: list[UnixUser]
) -> None:
    install("sudo", "sudo")
    service = start(people[2])
    with service.client() as admin, service.user_client(admin, people[0]) as client:
        job = client.submit(spec(folder / "logs" / "never"))
        wait_until(lambda: "sudo: " in client.job(job.id).status_message, 30, "sudo's refusal")
        assert client.job(job.id).status == "submitting"
        client.cancel(job.id)
        wait_for_status(client, job.id, "cancelled", seconds=30)


def check_cancel(service: OwnerService, slurm: SlurmLab, folder: Path, owner: UnixUser) -> None:
    """Cancel a running job."""
    log = folder / "logs" / "long"
    log.with_name("long.wait").touch()
    with service.client() as admin, service.user_client(admin, owner) as client:
        job = client.submit(spec(log))
        wait_until(log.exists, 60, "the program to run")
        (attempt,) = client.attempts(job.id)
        client.cancel(job.id)
        done = wait_for_status(client, job.id, "cancelled", "failed", "succeeded", seconds=60)
        assert (done.status, done.status_reason) == ("cancelled", "user_cancelled")
    wait_until(lambda: not processes_of(attempt.id), 20, "its processes to be gone")


def test_a_running_job_is_cancelled_as_its_owner(
    start: Start, slurm: SlurmLab, folder: Path, people: list[UnixUser]
) -> None:
    check_cancel(start(), slurm, folder, people[0])


@contextmanager
def sbatch_that(body: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace sbatch by a script, until the end of the block."""
    install_wrapper(folder / "bin", "sbatch", body, monkeypatch)
    try:
        yield
    finally:
        (folder / "bin" / "sbatch").unlink()


def test_a_planted_job_with_the_tag_of_another_user_is_not_adopted(
    start: Start, slurm: SlurmLab, folder: Path, people: list[UnixUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, thief = people[:2]
    log, lost = folder / "logs" / "planted", folder / "logs" / "lost"
    body = f'if [ -e {lost} ]; then exec $REAL "$@"; fi; touch {lost}; kill -9 $PPID'
    with sbatch_that(body, folder, monkeypatch):
        service = start(slurm_confirm_absence_seconds="6", slurm_submit_timeout_seconds="3")
        with service.client() as admin, service.user_client(admin, owner) as client:
            job = client.submit(spec(log))
            wait_until(lost.exists, 30, "the submission to be lost")
            (attempt,) = client.attempts(job.id)
            chdir = next((service.runs_dir / job.id / "attempts").iterdir())
            for options in ("--chdir=/tmp", f"--chdir={chdir}"):
                name = f"--job-name=ty-main-{attempt.id}"
                command = ("sbatch", name, options, "--output=/dev/null", "--wrap", "sleep 100")
                planted = run_as(thief, *command, env=slurm.environment)
                assert planted.returncode == 0, planted.stderr
            done = wait_for_status(client, job.id, "succeeded", "failed", seconds=90)
            assert done.status == "succeeded", (done.status_message, service.log_tail())
            assert len(log.read_text().splitlines()) == 1
            (attempt,) = client.attempts(job.id)
            assert log.read_text().split()[1] == attempt.scheduler_id
    running = slurm.run("squeue", "--states=R,PD", "--noheader", "-o", "%u").split()
    assert running == [thief.name] * 2, "nobody else's job was cancelled"


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_service_killed_during_sbatch_runs_the_job_once(
    phase: str, start: Start, slurm: SlurmLab, folder: Path, people: list[UnixUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, called = folder / "logs" / "killed", folder / "logs" / "called"
    steps = (
        [f"touch {called}", "sleep 2", '$REAL "$@"']
        if phase == "before"
        else ['$REAL "$@"', f"touch {called}", "sleep 2"]
    )
    with sbatch_that(f'[ -e {called} ] && exec $REAL "$@"; {"; ".join(steps)}', folder, monkeypatch):
        service = start(slurm_confirm_absence_seconds="6", slurm_submit_timeout_seconds="5")
        with service.client() as admin, service.user_client(admin, people[0]) as client:
            job = client.submit(spec(log))
            wait_until(called.exists, 30, "sbatch")
        service.kill()
        service.start()
        with service.client() as admin, service.user_client(admin, people[0]) as client:
            done = wait_for_status(client, job.id, "succeeded", "failed", seconds=90)
            assert done.status == "succeeded", (done.status_message, service.log_tail())
            (attempt,) = client.attempts(job.id)
    assert [line.split()[1] for line in log.read_text().splitlines()] == [attempt.scheduler_id]
    assert [name for name in users_of(slurm) if name == f"ty-main-{attempt.id}"] == [f"ty-main-{attempt.id}"]


def test_a_helper_that_is_killed_leaves_no_second_job(
    start: Start, slurm: SlurmLab, folder: Path, people: list[UnixUser], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = folder / "logs" / "once"
    with sbatch_that('$REAL "$@" > /dev/null; kill -9 $PPID', folder, monkeypatch):
        service = start(slurm_confirm_absence_seconds="6")
        with service.client() as admin, service.user_client(admin, people[0]) as client:
            job = client.submit(spec(log))
            done = wait_for_status(client, job.id, "succeeded", "failed", seconds=90)
            assert done.status == "succeeded", (done.status_message, service.log_tail())
            assert len(list(client.attempts(job.id))) == 1
    assert len(log.read_text().splitlines()) == 1
