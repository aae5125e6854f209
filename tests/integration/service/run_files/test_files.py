"""Changes of runs that belong to real Unix accounts."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.as_owner import calls as owner_calls_module
from service.as_owner.accounts import Accounts
from service.as_owner.calls import HELPER, OwnerCalls
from service.run_files.files import OwnerRunFiles, RunFiles
from tests.support.owners import UnixUser, open_folder, readable_python, unix_users

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make Unix accounts")

JOB, OTHER_JOB = "job_1", "job_2"
UNUSED_UID = 3_999_999


@dataclass(frozen=True)
class Site:
    """Two users, each with a run that has a checkpoint."""

    files: OwnerRunFiles
    ada: UnixUser
    bob: UnixUser

    def run(self, job_id: str) -> Path:
        return self.files.runs / job_id


def make_run(runs: Path, job_id: str, uid: int) -> None:
    run = runs / job_id
    file = run / "checkpoints" / "step-0000000007" / "model.distcp"
    file.parent.mkdir(parents=True)
    file.touch()
    for path in (run, *run.rglob("*")):
        os.chown(path, uid, -1)


@pytest.fixture(scope="module")
def accounts() -> Iterator[tuple[list[UnixUser], Path]]:
    with unix_users(2) as users, readable_python() as python:
        yield users, python.with_name(HELPER)


@pytest.fixture
def site(accounts: tuple[list[UnixUser], Path]) -> Iterator[Site]:
    (ada, bob), helper = accounts
    with open_folder() as folder:
        runs = folder / "runs"
        runs.mkdir()
        runs.chmod(0o3733)
        make_run(runs, JOB, ada.uid)
        make_run(runs, OTHER_JOB, bob.uid)
        yield Site(OwnerRunFiles(runs, OwnerCalls(Accounts(1000), helper)), ada, bob)


def test_checkpoint_and_run_are_removed_as_their_owner(site: Site) -> None:
    site.files.remove_checkpoint(site.ada.uid, JOB, 7, "ckpt_1")
    assert list((site.run(JOB) / "checkpoints").iterdir()) == []
    assert site.files.remove_run(site.ada.uid, JOB)
    assert not site.run(JOB).exists()
    assert (site.run(OTHER_JOB) / "checkpoints" / "step-0000000007" / "model.distcp").exists()


def test_planted_link_to_the_run_of_another_user_removes_nothing_of_it(site: Site) -> None:
    checkpoints = site.run(JOB) / "checkpoints"
    checkpoints.rename(site.run(JOB) / "moved")
    checkpoints.symlink_to(site.run(OTHER_JOB) / "checkpoints")
    with pytest.raises(OSError, match="checkpoints"):
        site.files.remove_checkpoint(site.ada.uid, JOB, 7, "ckpt_1")
    assert site.files.remove_run(site.ada.uid, JOB)
    assert (site.run(OTHER_JOB) / "checkpoints" / "step-0000000007" / "model.distcp").exists()


def test_run_of_another_account_is_not_removed(site: Site) -> None:
    with pytest.raises(OSError, match="Permission denied"):
        site.files.remove_run(site.bob.uid, JOB)
    assert (site.run(JOB) / "checkpoints" / "step-0000000007").exists()


def test_root_removes_the_run_of_an_account_that_is_gone(site: Site) -> None:
    make_run(site.files.runs, "job_3", UNUSED_UID)
    assert site.files.remove_run(UNUSED_UID, "job_3")
    assert not site.run("job_3").exists()


def test_service_that_acts_as_nobody_states_the_setting(site: Site) -> None:
    files = RunFiles(site.files.runs)
    with pytest.raises(OSError, match="TRAINYARD_RUN_AS=owner"):
        files.remove_run(site.ada.uid, JOB)
    assert site.run(JOB).exists()


def test_trash_of_another_account_is_not_used(site: Site) -> None:
    trash = site.files.runs / ".trash"
    trash.mkdir()
    os.chown(trash, site.ada.uid, -1)
    make_run(site.files.runs, "job_3", 0)
    with pytest.raises(OSError, match="belongs to another account"):
        site.files.remove_run(None, "job_3")


def test_an_owner_who_delays_a_removal_delays_those_of_others_briefly(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_calls_module, "_BRIEF_SECONDS", 3.0)
    with open_folder() as folder:
        helper = folder / HELPER
        helper.write_text(f"#!/bin/sh\n[ $(id -u) = {site.ada.uid} ] && sleep 30\nexec {site.files.owners.helper}\n")
        helper.chmod(0o755)
        files = OwnerRunFiles(site.files.runs, OwnerCalls(Accounts(1000), helper))
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(OSError, match=f"uid {site.ada.uid}"):
                files.remove_run(site.ada.uid, JOB)
        assert files.remove_run(site.bob.uid, OTHER_JOB)
        assert time.monotonic() - began < 20
