"""Where ranks have their temporary files: in no folder that another account can change."""

import os
import tempfile
from pathlib import Path

import pytest

from worker.environment.containers.init_process import temporary_variable


@pytest.fixture
def retained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the ranks of this account share on a node."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"trainyard-{os.getuid()}"


def test_private_folder_is_made_once_and_retained(retained: Path) -> None:
    assert temporary_variable() == {"TMPDIR": str(retained)} == temporary_variable()
    assert retained.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("made", ["open", "link", "file", "another's"])
def test_folder_that_another_account_could_have_made_is_not_used(tmp_path: Path, retained: Path, made: str) -> None:
    if made == "link":
        retained.symlink_to(tmp_path)
    elif made == "file":
        retained.touch(mode=0o600)
    else:
        retained.mkdir(mode=0o700)
        if made == "open":
            retained.chmod(0o770)
        elif os.geteuid() == 0:
            os.chown(retained, 65534, 65534)
        else:
            pytest.skip("only root can give a folder to another account")
    folder = Path(temporary_variable()["TMPDIR"])
    assert folder != retained
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)


def test_machine_without_a_folder_for_temporary_files_keeps_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    assert temporary_variable() == {}
