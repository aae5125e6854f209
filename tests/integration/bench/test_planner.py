"""The planner's benchmark runs, also for objectives with a reference."""

import subprocess
import sys

import pytest


@pytest.mark.heavy
def test_predictions_for_answers_with_a_reference_are_close() -> None:
    command = [sys.executable, "-m", "bench.planner", "--only", "KTO"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    assert "6 runs, largest error" in ran.stdout
