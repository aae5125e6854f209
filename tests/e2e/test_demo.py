"""`make demo` on a new machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wait import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_demo_trains_prints_the_curve_and_leaves_no_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainyard.demo"], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for promised in (
        "train/loss",
        "eval/accuracy",
        "checkpoint of step 276",
        "Next steps",
        "Web page of this job: http",
    ):
        assert promised in done.stdout
    # The launcher of a job that has just succeeded may still be exiting.
    wait_until(lambda: not processes_of_folder(tmp_path), 20, "its processes to be gone")


def processes_of_folder(folder: Path) -> str:
    """Return the processes that were started with a path in the folder."""
    return subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False).stdout
