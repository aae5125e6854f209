"""The Slurm lab leaves no process behind, however the tests end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slurm_reaper import cluster_processes
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

PROGRAM = """
import time
from tests.support.slurm_lab import running_lab
from tests.support.wait import wait_until
with running_lab() as lab:
    lab.run("sbatch", "-N2", "--output=/dev/null", "--wrap", "srun sleep 600")
    wait_until(lambda: lab.jobs(states="RUNNING"), 60, "the job to run")
    print(lab.conf, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_killed_lab_leaves_no_process(end: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=root, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        conf = Path(tests.stdout.readline().strip())
        wait_until(lambda: "slurmstepd" in names(conf), 30, "a step to run")
        tests.send_signal(end)
        tests.wait(60)
    wait_until(lambda: not cluster_processes(conf), 60, "its processes to end")
    wait_until(lambda: not conf.parent.exists(), 30, "its folder to be gone")


def names(conf: Path) -> str:
    """Return the names of the programs that run with the configuration."""
    return " ".join(process.name() for process in cluster_processes(conf) if process.is_running())
