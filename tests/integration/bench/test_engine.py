"""Every engine of the benchmark trains, in two processes."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_contender_trains() -> None:
    command = [sys.executable, "-m", "bench.engine", "--processes", "2", "--steps", "5", "--rounds", "1"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert "Trainyard's overhead per step" in ran.stdout, ran.stderr[-2000:]
    rows = {line[:19].strip() for line in ran.stdout.splitlines()}
    assert {"trainyard", "bare loop", "accelerate", "Fabric", "Trainer"} <= rows
