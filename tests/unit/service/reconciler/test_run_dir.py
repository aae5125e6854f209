"""Startup errors and claims read from the folder of an attempt."""

from pathlib import Path

import pytest

from service.core.untrusted_files import UntrustedFiles
from service.reconciler.run_dir import (
    UnclaimedAttempt,
    memory_error_in,
    read_memory_error,
    read_unclaimed,
    startup_error_in,
)
from trainyard.contract.layout import AttemptLayout

NO_PYTHON = """\
slurmstepd-node1: error: execve(): /shared/venv/bin/python: No such file or directory
srun: error: node1: task 0: Exited with exit code 2
srun: launch/slurm: _step_signal: Terminating StepId=4.0
"""
NO_WORKER = """\
/shared/venv/bin/python: Error while finding module specification for 'submitit.core._submit'
slurmstepd: error: *** STEP 4.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 ***
srun: error: node1: task 0: Exited with exit code 1
"""


def test_the_startup_error_is_the_last_line_that_names_a_cause() -> None:
    assert startup_error_in(NO_PYTHON).endswith("/shared/venv/bin/python: No such file or directory")
    assert startup_error_in(NO_WORKER).endswith("'submitit.core._submit'")
    assert startup_error_in("srun: error: Unable to create step\n") == "srun: error: Unable to create step"
    assert startup_error_in("\n") == ""


def test_a_startup_error_is_short_and_printable() -> None:
    assert startup_error_in("\x1b[2J" + "x" * 10_000) == "x" * 500


def test_startup_errors_are_read_for_ended_unclaimed_attempts(tmp_path: Path) -> None:
    folder = AttemptLayout(tmp_path)
    (tmp_path / "submitit").mkdir()
    (tmp_path / "submitit" / "4_0_log.err").write_text("x\n" * 20_000 + NO_PYTHON)
    assert read_unclaimed(UntrustedFiles(tmp_path), folder, ended=False) == UnclaimedAttempt()
    assert "No such file" in read_unclaimed(UntrustedFiles(tmp_path), folder, ended=True).startup_error
    folder.claim.write_text('{"nonce": "nonce-of-the-first", "host": "n1", "pid": 7, "scheduler_id": "17"}')
    assert read_unclaimed(UntrustedFiles(tmp_path), folder, ended=True) == UnclaimedAttempt(started=True)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "submitit").mkdir(parents=True)
    (tmp_path / "run" / "submitit" / "4_0_log.err").symlink_to(tmp_path / "secret")
    (tmp_path / "run" / "launch.json").touch()
    assert read_unclaimed(UntrustedFiles(tmp_path), AttemptLayout(tmp_path / "run"), ended=True) == UnclaimedAttempt()


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd-node1: error: Detected 1 oom-kill event(s) in StepId=2.0. Some of your processes may",
        "slurmstepd: error: Detected 3 oom_kill events in StepId=7.batch. Some of the step tasks have been OOM Killed.",
        "slurmstepd: error: StepId=5.0 exceeded memory limit (427634688 > 104857600), being killed",
        "slurmstepd-node1: error: Exceeded job memory limit",
        "srun: error: node1: task 0: Out Of Memory",
        "srun: error: node[1-2]: tasks 0-1: Out Of Memory",
    ],
)
def test_a_line_of_slurm_reports_a_lack_of_memory(line: str) -> None:
    assert memory_error_in(f"epoch 1\n{line}\n{NO_PYTHON}") == line
    assert memory_error_in(f"INFO {line}") == "", "a program that quotes it"


@pytest.mark.parametrize("text", [NO_PYTHON, NO_WORKER, "srun: error: node1: task 0: Killed", "torch: out of memory"])
def test_other_lines_report_no_lack_of_memory(text: str) -> None:
    assert memory_error_in(text) == ""


def test_the_lack_of_memory_is_read_from_any_log(tmp_path: Path) -> None:
    (tmp_path / "submitit").mkdir()
    (tmp_path / "submitit" / "4_0_log.err").write_text("x\n")
    assert read_memory_error(UntrustedFiles(tmp_path), AttemptLayout(tmp_path)) == ""
    (tmp_path / "submitit" / "4_1_log.err").write_text("srun: error: node2: task 1: Out Of Memory\n")
    assert "node2" in read_memory_error(UntrustedFiles(tmp_path), AttemptLayout(tmp_path))
