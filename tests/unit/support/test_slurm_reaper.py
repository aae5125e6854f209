"""Which processes belong to a Slurm lab and end with it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_reaper import DAEMON_VARIABLE, cluster_processes

CONF = Path("/nowhere/slurm.conf")


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yield the pid of a process with the configuration and the parameter's variables in its environment."""
    environ = {"PATH": os.environ["PATH"], "SLURM_CONF": str(CONF), **request.param}
    with subprocess.Popen(["sleep", "60"], env=environ) as sleeping:
        yield sleeping.pid
        sleeping.kill()


@pytest.mark.parametrize("process", [{}, {"TRAINYARD_URL": "http://127.0.0.1:8470"}], indirect=True)
def test_program_of_a_user_who_named_the_configuration_lives_on(process: int) -> None:
    assert cluster_processes(CONF) == []


@pytest.mark.parametrize(
    "process", [{DAEMON_VARIABLE: "slurmctld"}, {"SLURM_JOB_ID": "7"}, {"SLURMD_NODENAME": "node1"}], indirect=True
)
def test_daemons_and_what_jobs_started_end_with_the_lab(process: int) -> None:
    assert [each.pid for each in cluster_processes(CONF)] == [process]


@pytest.mark.parametrize(
    "process", [{"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node2"}, {DAEMON_VARIABLE: "node2"}], indirect=True
)
def test_processes_of_another_node_live_on(process: int) -> None:
    assert cluster_processes(CONF, "node1") == []
    assert [each.pid for each in cluster_processes(CONF, "node2")] == [process]


def test_a_step_is_known_by_its_socket(tmp_path: Path) -> None:
    """The slurmstepd of Slurm 24.11 has an empty environment."""
    conf, folder = tmp_path / "slurm.conf", tmp_path / "spool" / "node1"
    folder.mkdir(parents=True)
    bind = "import socket, sys; own = socket.socket(socket.AF_UNIX); own.bind(sys.argv[1]); print(flush=True)"
    program = [sys.executable, "-c", f"{bind}; import time; time.sleep(60)", str(folder / "node1_7.0")]
    with subprocess.Popen(program, env={}, stdout=subprocess.PIPE) as step:
        assert step.stdout is not None
        step.stdout.readline()
        assert [each.pid for each in cluster_processes(conf)] == [step.pid]
        assert [each.pid for each in cluster_processes(conf, "node1")] == [step.pid]
        assert cluster_processes(conf, "node2") == cluster_processes(CONF) == []
        step.kill()
