"""The engine's benchmark runs on the CPU with a tiny model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_contender_trains_the_llama_with_and_without_compile():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench.engine", "--tiny"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = [line[:19].strip() for line in ran.stdout.splitlines()]
    for how in ("", " +compile"):
        assert {f"trainyard{how}", f"bare loop{how}", f"Trainer{how}"} <= set(rows)
