"""The helper with real accounts: whose the files are, and that nobody reaches what belongs to another."""

import os
import stat
import time
from pathlib import Path

import psutil
import pytest

from service.as_owner.accounts import AccountError
from service.as_owner.calls import NoAnswerError, OperationError, OwnerCalls
from tests.support.owners import UnixUser
from tests.support.wait import wait_until

JOB = "job_01"
SYSTEM = {"PATH": "/usr/bin:/bin"}


def test_a_run_folder_belongs_to_its_owner_and_the_group_of_the_service(
    calls: OwnerCalls, people: list[UnixUser], runs: Path
) -> None:
    owner, other = people[:2]
    files = [("spec.json", 0o640, "{}"), ("attempts/1/token", 0o600, "secret")]
    calls.write(owner.uid, runs, JOB, folders=["attempts", "attempts/1"], files=files)
    modes = {}
    for path in [runs / JOB, *(runs / JOB).rglob("*")]:
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (owner.uid, os.getegid())
        modes[path.name] = stat.S_IMODE(status.st_mode)
    assert modes == {JOB: 0o2750, "attempts": 0o2750, "1": 0o2750, "spec.json": 0o640, "token": 0o600}
    for command in (["ls", str(runs)], ["cat", str(runs / JOB / "spec.json")], ["rm", "-rf", str(runs / JOB)]):
        status, output, errors = calls.command(other.uid, command, SYSTEM, 10)
        assert (status != 0, output) == (True, ""), errors
    assert (runs / JOB / "spec.json").exists()


def test_a_helper_has_the_groups_of_its_account_alone(calls: OwnerCalls, people: list[UnixUser]) -> None:
    owner = people[0]
    _, output, _ = calls.command(owner.uid, ["grep", "-E", "^(Uid|Gid|Groups|CapEff)", "/proc/self/status"], SYSTEM, 10)
    uids, gids, groups, capabilities = (line.split()[1:] for line in output.splitlines())
    assert uids == [str(owner.uid)] * 4
    assert gids == [str(owner.gid)] * 4
    assert groups == [str(owner.gid)]
    assert int(capabilities[0], 16) == 0


def test_a_folder_of_another_account_in_place_of_a_run_is_refused(
    calls: OwnerCalls, people: list[UnixUser], runs: Path
) -> None:
    owner, thief = people[:2]
    calls.write(thief.uid, runs, JOB)
    with pytest.raises(OperationError, match=f"belongs to uid {thief.uid}"):
        calls.write(owner.uid, runs, JOB, files=[("attempts/1/token", 0o600, "secret")])
    calls.command(thief.uid, ["ln", "-s", str(runs / JOB), str(runs / "job_02")], SYSTEM, 10)
    with pytest.raises(OperationError, match=f"belongs to uid {thief.uid}"):
        calls.write(owner.uid, runs, "job_02", files=[("attempts/1/token", 0o600, "secret")])
    assert not any((runs / JOB).iterdir())


def test_a_removal_reaches_only_what_belongs_to_the_owner(
    calls: OwnerCalls, people: list[UnixUser], runs: Path
) -> None:
    owner, thief = people[:2]
    calls.write(owner.uid, runs, JOB, files=[("checkpoints/step-1/data", 0o640, "x")])
    calls.write(thief.uid, runs, "job_02", folders=["checkpoints"])
    planted = runs / "job_02" / "checkpoints" / "step-1"
    calls.command(thief.uid, ["ln", "-s", str(runs / JOB / "checkpoints"), str(planted)], SYSTEM, 10)
    assert calls.remove(thief.uid, runs, "job_02", ["checkpoints/step-1"]) == []
    assert not os.path.lexists(planted)
    with pytest.raises(OperationError):
        calls.remove(thief.uid, runs, JOB, ["."])
    assert (runs / JOB / "checkpoints" / "step-1" / "data").read_text() == "x"
    calls.command(owner.uid, ["chmod", "-R", "0", str(runs / JOB / "checkpoints")], SYSTEM, 10)
    assert calls.remove(owner.uid, runs, JOB, ["."]) == []
    assert not (runs / JOB).exists()


def test_a_checkpoint_of_another_account_cannot_be_linked(
    calls: OwnerCalls, people: list[UnixUser], runs: Path
) -> None:
    owner, thief = people[:2]
    files = [("checkpoints/step-1/data", 0o640, "x"), ("checkpoints/step-1/manifest.json", 0o640, "{}")]
    calls.write(owner.uid, runs, JOB, files=files)
    calls.link(owner.uid, runs, "job_02", f"{JOB}/checkpoints/step-1", "origin/step-1")
    assert (runs / "job_02" / "origin" / "step-1" / "data").samefile(runs / JOB / "checkpoints" / "step-1" / "data")
    with pytest.raises(OperationError, match="Permission"):
        calls.link(thief.uid, runs, "job_03", f"{JOB}/checkpoints/step-1", "origin/step-1")
    with pytest.raises(FileNotFoundError):
        calls.link(owner.uid, runs, "job_04", f"{JOB}/checkpoints/step-2", "origin/step-2")


def test_a_command_that_takes_too_long_is_killed(calls: OwnerCalls, people: list[UnixUser]) -> None:
    begun = time.monotonic()
    with pytest.raises(NoAnswerError):
        calls.command(people[0].uid, ["sleep", "300"], SYSTEM, 5)
    assert time.monotonic() - begun < 100, "it was not awaited"

    def is_gone() -> bool:
        uids = [process.info["uids"] for process in psutil.process_iter(["uids"])]
        return people[0].uid not in [each.real for each in uids if each is not None]

    wait_until(is_gone, 5, "all processes of the account to be gone")


@pytest.mark.parametrize("uid", [0, 1, 65534, 2**31])
def test_accounts_that_own_no_jobs_are_refused(calls: OwnerCalls, runs: Path, uid: int) -> None:
    calls.accounts = type(calls.accounts)(70_000) if uid == 65534 else calls.accounts
    with pytest.raises(AccountError):
        calls.write(uid, runs, JOB)
    assert not any(runs.iterdir())
