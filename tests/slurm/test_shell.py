"""`trainyard shell` and `trainyard exec` as steps of a job on two nodes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.live import attempt_of, run_of, wait_for_status
from tests.support.slurm_lab import SlurmLab
from tests.support.terminal import on_terminal, run_trainyard, trainyard
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm

PROGRAM = """
import time
from trainyard.script import report, should_stop

while not should_stop():
    time.sleep(0.1)
"""
ODD = ["", "a b", "line\nbreak", 'it\'s "quoted"', "$HOME `id` ;|&", "-x", "--", "*", "%t", "x" * 5000]


@pytest.fixture
def service(slurm: SlurmLab, tmp_path: Path) -> Iterator[ServiceProcess]:
    with slurm_service(tmp_path / "state") as made:
        yield made


@pytest.fixture
def job(service: ServiceProcess, tmp_path: Path) -> str:
    """A running job with one rank on each of two nodes, in a virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text(PROGRAM)
    spec = {
        "task": "script",
        "argv": ["train.py"],
        "gpus": 2,
        "resources": {"partition": "gpu", "gpus_per_node": 1},
        "environment": {"venv": str(tmp_path / "env"), "setup": ["export APP_FROM_SETUP='a b'"]},
    }
    with service.client() as client:
        job_id = client.submit(spec, code=tmp_path / "mine").id
        wait_for_status(client, job_id, "running")
        run = run_of(service.runs_dir, job_id)
        layout = attempt_of(run, 1)
        wait_until(lambda: all(layout.placement(node).exists() for node in (0, 1)), 120, "the ranks to start")
        wait_until(lambda: all(layout.rank_log(rank).exists() for rank in (0, 1)), 120, "the ranks")
    return job_id


@pytest.fixture
def environ(service: ServiceProcess, slurm: SlurmLab) -> dict[str, str]:
    token = (service.state_dir / "admin_token").read_text().strip()
    return {**slurm.environment, "TRAINYARD_URL": service.url, "TRAINYARD_TOKEN": token, "TERM": "xterm"}


def commands(argument: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if line.strip() == f"sleep {argument}"]


def test_command_runs_once_on_each_node_in_the_environment_of_its_rank(job: str, environ: dict[str, str]) -> None:
    observe = (
        "import json, os, sys; print(json.dumps([os.environ['SLURMD_NODENAME'], os.environ['RANK'], sys.prefix, "
        "os.environ['APP_FROM_SETUP'], 'TRAINYARD_TOKEN' in os.environ, sys.argv[1:]]))"
    )
    done = run_trainyard(environ, "exec", job, "--json", "--", "python3", "-c", observe, *ODD)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    observed = {answer["node"]: json.loads(answer["stdout"]) for answer in answers}
    assert observed.keys() == {"node1", "node2"}
    assert {node: values[0] for node, values in observed.items()} == {"node1": "node1", "node2": "node2"}
    assert {values[1] for values in observed.values()} == {"0", "1"}
    for values in observed.values():
        assert values[2].endswith("/env")
        assert values[3:] == ["a b", False, ODD]
    plain = run_trainyard(environ, "exec", job, "--", "sh", "-c", "echo $SLURMD_NODENAME; exit $((RANK + 3))")
    assert (plain.returncode, sorted(plain.stdout.splitlines())) == (4, ["node1: node1", "node2: node2"])
    for rank in "01":
        one = run_trainyard(environ, "exec", job, "--rank", rank, "--json", "--", "printenv", "RANK")
        assert json.loads(one.stdout)["stdout"] == f"{rank}\n"
    assert run_trainyard(environ, "exec", job, "--rank", "2", "--", "true").returncode == 2


def test_output_of_both_nodes_is_complete(job: str, environ: dict[str, str]) -> None:
    done = run_trainyard(
        environ, "exec", job, "--json", "--", "sh", "-c", "head -c 500000 /dev/zero | tr '\\0' x; echo e >&2"
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(len(one["stdout"]), one["stderr"], one["exit_code"]) for one in answers] == [(500_000, "e\n", 0)] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_steps_on_the_nodes(job: str, environ: dict[str, str], number: signal.Signals) -> None:
    process = subprocess.Popen(
        trainyard("exec", job, "--", "sh", "-c", "trap '' TERM INT; sleep 4714 & wait; sleep 4714"),
        env=environ,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: len(commands("4714")) == 2, 60, "the command to run on both nodes")
    process.send_signal(number)
    assert process.wait(60) == 130
    wait_until(lambda: not commands("4714"), 60, "the command to end on both nodes")


def test_timeout_is_enforced_on_the_nodes(job: str, environ: dict[str, str]) -> None:
    done = run_trainyard(environ, "exec", job, "--timeout", "2", "--", "sleep", "4715")
    assert (done.returncode, done.stderr.count("took too long")) == (124, 2)
    assert not commands("4715")


def test_shell_opens_on_the_node_of_the_rank(job: str, environ: dict[str, str]) -> None:
    for rank in "01":
        with on_terminal(trainyard("shell", job, "--rank", rank), environ) as terminal:
            terminal.wait_for(f"(rank {rank} on node")
            terminal.send("tty; echo rank=$RANK python=$(command -v python3) ${TRAINYARD_TOKEN-none}-\n")
            output = terminal.wait_for("none-\r\n")
            assert "/dev/pts/" in output
            assert f"rank={rank} python=/" in output
            assert "/env/bin/python3 none-" in output
            terminal.send("sleep 4716\n")
            wait_until(lambda: commands("4716"), 30, "the command to run")
            terminal.send("\x03")
            wait_until(lambda: not commands("4716"), 30, "Ctrl-C to end the command")
            terminal.send("exit 7\n")
            assert terminal.wait() == 7


def test_shell_and_command_end_with_the_job(job: str, environ: dict[str, str], service: ServiceProcess) -> None:
    process = subprocess.Popen(trainyard("exec", job, "--", "sleep", "4717"), env=environ, stderr=subprocess.PIPE)
    with on_terminal(trainyard("shell", job), environ) as terminal:
        terminal.wait_for("(rank 0 on node")
        wait_until(lambda: len(commands("4717")) == 2, 60, "the command to run on both nodes")
        with service.client() as client:
            client.cancel(job)
            wait_for_status(client, job, "cancelled")
        assert terminal.wait() != 0
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert not commands("4717"), errors


def test_line_that_is_printed_without_slurm_works_where_it_is(job: str, environ: dict[str, str]) -> None:
    bare = {**environ, "PATH": "/nonexistent"}
    done = run_trainyard(bare, "exec", job, "--rank", "1", "--", "echo", "a b", "it's")
    assert done.returncode == 8
    assert "this machine has no `srun`; type the printed line on a login node of the cluster" in done.stderr
    # The line works where Slurm's commands are.
    typed = subprocess.run(["sh", "-c", done.stdout], env=environ, capture_output=True, text=True, check=True)
    assert [json.loads(line).get("exit_code") for line in typed.stdout.splitlines()] == [None, 0]
    line = run_trainyard(bare, "shell", job).stdout
    with on_terminal(["sh", "-c", line], environ) as terminal:
        terminal.wait_for("(rank 0 on node")
        terminal.send("exit 5\n")
        assert terminal.wait() == 5
