"""The folder of all runs where jobs run as their owners."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from service.as_owner.runs_folder import MODE, prepare_runs_folder
from service.code.store import Upload
from service.core.errors import ServiceError
from tests.support.owners import UnixUser


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_new_folder_has_the_folders_of_the_service(tmp_path: Path, state: Path) -> None:
    runs = tmp_path / "runs"
    for _ in range(2):
        prepare_runs_folder(runs, state)
        assert [mode_of(path) for path in (runs, runs / "code", runs / ".trash")] == [MODE, 0o711, 0o700]


@pytest.mark.parametrize("name", ["code", ".trash"])
def test_a_folder_that_a_user_made_first_prevents_the_start(
    tmp_path: Path, state: Path, name: str, people: list[UnixUser]
) -> None:
    runs = tmp_path / "runs"
    prepare_runs_folder(runs, state)
    (runs / name).rmdir()
    (runs / name).mkdir()
    os.chown(runs / name, people[0].uid, -1)
    with pytest.raises(ServiceError, match=f"{name} belongs to uid {people[0].uid}"):
        prepare_runs_folder(runs, state)


def test_a_link_in_place_of_a_folder_prevents_the_start(tmp_path: Path, state: Path) -> None:
    runs = tmp_path / "runs"
    prepare_runs_folder(runs, state)
    (runs / "code").rmdir()
    (runs / "code").symlink_to(tmp_path)
    with pytest.raises(ServiceError, match="code"):
        prepare_runs_folder(runs, state)


@pytest.mark.parametrize(("is_shared", "mode"), [(True, 0o644), (False, 0o600)])
def test_archives_are_as_open_as_their_folder(tmp_path: Path, state: Path, is_shared: bool, mode: int) -> None:
    runs = tmp_path / "runs"
    if is_shared:
        prepare_runs_folder(runs, state)
    else:
        (runs / "code").mkdir(parents=True, mode=0o700)
    digest = hashlib.sha256(b"x").hexdigest()
    upload = Upload(runs, f"sha256:{digest}")
    upload.add(b"x")
    upload.store()
    assert mode_of(runs / "code" / f"{digest}.tar") == mode
