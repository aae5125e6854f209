"""The operations of the helper, on the caller's own files."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from service.as_owner import operations


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def request(runs: Path, **fields: Any) -> dict[str, Any]:
    return {"runs": str(runs), "job": "job_1", "folders": [], "files": [], **fields}


def test_files_and_folders_are_made_closed_to_others(runs: Path) -> None:
    operations.write(
        request(
            runs,
            folders=["attempts", "attempts/1"],
            files=[["spec.json", 0o666, "{}"], ["attempts/1/token", 0o600, "t"]],
        )
    )
    run = runs / "job_1"
    assert ((run / "spec.json").read_text(), (run / "attempts" / "1" / "token").read_text()) == ("{}", "t")
    for path in [run, *run.rglob("*")]:
        assert not path.stat().st_mode & stat.S_IRWXO, path


def test_a_run_folder_of_another_account_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "job_1").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(PermissionError, match="an administrator must remove it"):
        operations.write(request(runs, files=[["spec.json", 0o600, "{}"]]))
    assert not any((runs / "job_1").iterdir())


def test_a_link_in_place_of_the_run_folder_is_refused(runs: Path, tmp_path: Path) -> None:
    (runs / "job_1").symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        operations.write(request(runs, files=[["spec.json", 0o600, "{}"]]))
    assert not (tmp_path / "spec.json").exists()


@pytest.mark.parametrize("job", ["", ".", "..", "a/b", "/etc"])
def test_a_job_is_one_folder(runs: Path, job: str) -> None:
    with pytest.raises(ValueError, match="name of a folder"):
        operations.write(request(runs, job=job))


@pytest.mark.parametrize("path", ["", "..", "../x", "a/../../x", "/etc/passwd"])
def test_no_path_leads_out_of_the_run_folder(runs: Path, path: str) -> None:
    with pytest.raises(ValueError, match="below the run folder"):
        operations.write(request(runs, files=[[path, 0o600, "x"]]))
    with pytest.raises(ValueError, match="below the run folder"):
        operations.remove_paths(request(runs, paths=[path], deadline=1e9))


def test_a_command_has_the_given_environment_alone() -> None:
    result = operations.run_command({"command": ["/usr/bin/env"], "environment": {"A": "1"}})
    assert result == {"returncode": 0, "stdout": "A=1\n", "stderr": ""}


def test_a_command_has_the_text_as_its_input() -> None:
    result = operations.run_command({"command": ["/usr/bin/cat"], "environment": {}, "text": "ü"})
    assert result["stdout"] == "ü"
