"""The files of a run are closed to other accounts, or readable by a group that the administrator has chosen."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live import attempt_of, wait_for_status
from trainyard.client import Client
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.templates import fill_template
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.e2e

SECRET_VALUE = "hush-hush-4711"
SCRIPT = f"""
import os
from trainyard.script import checkpoint_dir
assert os.environ["HF_TOKEN"] == "{SECRET_VALUE[:4]}" + "{SECRET_VALUE[4:]}"
(checkpoint_dir() / "x").touch()
"""


def finished_run(client: Client, runs: Path, folder: Path) -> RunLayout:
    """The run directory of a built-in job, after a job with uploaded code has run, too."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    client.set_secret("HF_TOKEN", SECRET_VALUE)
    script = client.submit(
        {"task": "script", "argv": ["train.py"], "environment": {"secrets": ["HF_TOKEN"]}}, code=folder
    )
    job = client.submit(
        fill_template("mlp_parity", {"steps": 4, "epochs": None, "gpus": 1, "checkpoint.every_steps": 2})
    )
    for handle in (script, job):
        wait_for_status(client, handle.id, "succeeded")
    run = RunLayout(runs / job.id)
    assert run.export.is_dir()
    assert run.complete_checkpoints()
    return run


def modes(runs: Path) -> dict[Path, int]:
    """Return the permissions of each file; a symbolic link has none of its own."""
    return {path: stat.S_IMODE(path.stat().st_mode) for path in runs.rglob("*") if not path.is_symlink()}


@pytest.mark.heavy
def test_run_files_are_private_and_contain_no_secret(
    service: ServiceProcess, client: Client, runs: Path, tmp_path: Path
) -> None:
    run = finished_run(client, runs, tmp_path / "code")
    assert {path: oct(mode) for path, mode in modes(runs).items() if mode & 0o077} == {}
    for path in (*runs.rglob("*"), *service.state_dir.rglob("*"), service.log):
        assert not path.is_file() or SECRET_VALUE.encode() not in path.read_bytes(), path
    attempt = attempt_of(run, 1)
    if os.getuid() == 0 and shutil.which("su"):
        for file in (attempt.launch, run.spec, attempt.launch_log):
            command = ["su", "nobody", "-s", "/bin/sh", "-c", f"cat {file}"]
            assert subprocess.run(command, capture_output=True, timeout=20).returncode != 0


@pytest.fixture
def group_service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path / "service", local_slots="2", tick_seconds="0.3", runs_group_readable="true")
    process.runs_dir.mkdir(parents=True)
    process.runs_dir.chmod(0o2750)
    process.start()
    yield process
    process.stop()


@pytest.mark.slow
def test_group_reads_run_files_but_not_the_token(group_service: ServiceProcess, tmp_path: Path) -> None:
    with group_service.client() as client:
        run = finished_run(client, group_service.runs_dir, tmp_path / "code")
    shown = modes(run.root)
    assert {path: oct(mode) for path, mode in shown.items() if mode & 0o027} == {}
    attempt = attempt_of(run, 1)
    assert shown[attempt.token] == 0o600
    for path in (run.spec, attempt.launch, attempt.rank_log(0), *(p for p in run.export.iterdir() if p.is_file())):
        assert shown[path] == 0o640, path
    for folder in (attempt.root, attempt.logs, run.export, run.checkpoints):
        assert shown[folder] == 0o2750, folder
