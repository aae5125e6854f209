"""The folder of torch's compiled code, which other accounts must not be able to write."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.layout import AttemptLayout
from worker.launcher.elastic import compiled_code_folder

LAUNCH: dict[str, Any] = {"spec": {"environment": {"container": None}}}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def own_folder(temporary: Path) -> Path:
    return temporary / f"trainyard-compiled-{os.getuid()}"


def made_folder(attempt: AttemptLayout) -> Path:
    folder = compiled_code_folder(attempt, LAUNCH)
    assert stat.S_IMODE(folder.lstat().st_mode) == 0o700
    return folder


def test_own_folder_is_kept_for_later_jobs(temporary: Path) -> None:
    attempt = AttemptLayout(temporary / "attempt")
    assert made_folder(attempt) == made_folder(attempt) == own_folder(temporary)


def by_another_account(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 65534, -1)


def writable_by_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def link(path: Path) -> None:
    path.symlink_to(path.parent)


@pytest.mark.parametrize("plant", [by_another_account, writable_by_all, link, Path.touch])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another account")
def test_what_another_account_made_is_not_used(temporary: Path, plant: Any) -> None:
    plant(own_folder(temporary))
    folder = made_folder(AttemptLayout(temporary / "attempt"))
    assert folder.parent == temporary
    assert folder not in (own_folder(temporary), temporary)
    assert not list(folder.iterdir())


def test_containers_use_the_folder_of_the_attempt(temporary: Path) -> None:
    launch = {"spec": {"environment": {"container": {"image": "x"}}}}
    folder = compiled_code_folder(AttemptLayout(temporary / "attempt"), launch)
    assert folder == temporary / "attempt" / "compiled"
