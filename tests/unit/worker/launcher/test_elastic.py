"""The folder for temporary files of ranks, in which torch keeps code: no other account can write there."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.layout import AttemptLayout
from worker.environment.containers.variables import container_variables as crossing
from worker.launcher.elastic import container_variables, private_temporary_folder


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that other accounts know."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"trainyard-{os.getuid()}"


def test_later_jobs_use_the_same_folder(own_folder: Path) -> None:
    for _ in range(2):
        with private_temporary_folder() as folder:
            assert Path(folder) == own_folder
            assert stat.S_IMODE(own_folder.lstat().st_mode) == 0o700
    assert own_folder.is_dir()


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
def test_what_another_account_made_is_not_used(own_folder: Path, plant: Any) -> None:
    plant(own_folder)
    with private_temporary_folder() as name:
        folder = Path(name)
        assert folder.parent == own_folder.parent
        assert folder.name.startswith("trainyard-")
        assert folder != own_folder
        assert stat.S_IMODE(folder.lstat().st_mode) == 0o700
    assert not folder.exists()


def test_errors_of_the_run_are_not_taken_for_ones_of_the_folder(own_folder: Path) -> None:
    with pytest.raises(FileExistsError, match="of the run"), private_temporary_folder():
        raise FileExistsError("of the run")


def test_torch_in_a_container_keeps_code_in_the_attempt(tmp_path: Path) -> None:
    launch = {"spec": {"environment": {"container": {"image": "x"}}}}
    variables = container_variables(AttemptLayout(tmp_path), launch)
    assert variables["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
    assert crossing(variables, ()) == variables
