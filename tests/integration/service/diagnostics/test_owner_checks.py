"""What `doctor` states about jobs that run as their owners."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from service.core.clock import utc_now
from service.core.settings import Settings
from service.db.engine import Database
from service.db.models import UnixUser
from service.diagnostics import owner_checks
from service.diagnostics.owner_checks import owners, program_problem, sudo_rule

UNUSED_UID = 3_999_999


@pytest.fixture
def settings(migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of a correct installation without users."""
    settings = Settings(state_dir=tmp_path / "state", run_as="owner", munge_role="user")
    settings.runs.mkdir(parents=True)
    settings.runs.chmod(0o3733)
    shutil.copy(migrated_sqlite, settings.state / "trainyard.sqlite")
    monkeypatch.setattr(owner_checks, "program_problem", lambda paths, uid: None)
    # The folders of pytest are closed to others.
    monkeypatch.setattr(owner_checks, "closed_parents", lambda runs: [])
    return settings


def add_user(settings: Settings, name: str, uid: int) -> None:
    database = Database(settings.url)
    with database.write() as session:
        session.add(UnixUser(name=name, uid=uid, created_at=utc_now()))
    database.dispose()


def test_jobs_of_the_service_need_nothing(settings: Settings) -> None:
    assert owners(settings.model_copy(update={"run_as": "service"})).state == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose services need no sudo")
def test_root_acts_as_its_users(settings: Settings) -> None:
    assert (owners(settings).state, owners(settings).message) == ("ok", "the service is root and acts as its users (0)")


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o2733])
def test_runs_folder_with_another_mode_is_an_error(settings: Settings, mode: int) -> None:
    settings.runs.chmod(mode)
    finding = owners(settings)
    assert finding.state == "error"
    assert finding.fix is not None
    assert f"chmod 3733 {settings.runs}" in finding.fix


def test_closed_folder_above_the_runs_is_an_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_checks, "closed_parents", lambda runs: list(runs.parents)[:1])
    finding = owners(settings)
    assert (finding.state, finding.message.partition(" is closed")[0]) == ("error", str(settings.runs.parent))


def test_helper_without_permission_is_not_called_missing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "is missing" in owners(settings).message
    helper = tmp_path / owner_checks.HELPER
    helper.touch(mode=0o644)
    assert owners(settings).fix == f"chmod 755 {helper}"


def test_user_whose_account_is_gone_is_named(settings: Settings) -> None:
    add_user(settings, "ada", UNUSED_UID)
    finding = owners(settings)
    assert (finding.state, "ada: " in finding.message) == ("warning", True)


def test_sudo_is_tried_for_each_user(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(settings, "nobody", 65534)
    monkeypatch.setattr(os, "geteuid", lambda: settings.runs.stat().st_uid or 1)
    monkeypatch.setattr(owner_checks, "_runs_problem", lambda runs: None)
    called: list[list[str]] = []

    def run(command: list[str], **options: object) -> "subprocess.CompletedProcess[bytes]":
        called.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    finding = owners(settings)
    assert (finding.state, finding.message.partition(" does not permit ")[0]) == ("error", "sudo")
    assert called[0][:6] == ["sudo", "-n", "-u", "nobody", "-l", "--"]
    assert "NOPASSWD: " in str(finding.fix)


def test_rule_permits_one_program_without_arguments() -> None:
    rule = sudo_rule("trainyard", "research", Path("/opt/trainyard/bin/trainyard-as-owner"))
    assert rule == 'trainyard ALL=(%research) NOPASSWD: /opt/trainyard/bin/trainyard-as-owner ""'


class TestPrograms:
    @pytest.fixture
    def program(self) -> Iterator[Path]:
        # All folders above pytest's are closed to other accounts.
        with TemporaryDirectory(dir="/tmp") as root:
            Path(root).chmod(0o755)
            program = Path(root) / "bin" / "helper"
            program.parent.mkdir(mode=0o755)
            program.touch(mode=0o755)
            yield program

    def test_program_that_only_root_and_the_service_change_is_accepted(self, program: Path) -> None:
        assert program_problem([program], os.geteuid()) is None

    @pytest.mark.parametrize("mode", [0o775, 0o777])
    def test_writable_folder_is_refused(self, program: Path, mode: int) -> None:
        program.parent.chmod(mode)
        assert "can be changed by other accounts" in str(program_problem([program], os.geteuid()))

    def test_writable_program_is_refused(self, program: Path) -> None:
        program.chmod(0o757)
        assert str(program) in str(program_problem([program], os.geteuid()))

    def test_closed_folder_is_refused(self, program: Path) -> None:
        program.parent.chmod(0o700)
        assert "closed to users" in str(program_problem([program], os.geteuid()))

    def test_target_of_a_link_is_examined(self, program: Path) -> None:
        link = program.parents[1] / "link"
        link.symlink_to(program)
        program.parent.chmod(0o777)
        assert str(program.parent) in str(program_problem([link], os.geteuid()))
