"""`trainyard shell` and `trainyard exec` beside the local processes of a job."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import processes_of, wait_for_status
from tests.support.terminal import on_terminal, run_trainyard, trainyard
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slow

PROGRAM = """
import time
from trainyard.script import report, should_stop

step = 0
while not should_stop():
    step += 1
    report(step, {"loss": 1.0}, total_steps=100000)
    time.sleep(0.1)
"""
ODD = ["", "a b", "line\nbreak", 'it\'s "quoted"', "$HOME `id` ;|&", "-x", "--", "*", "Ä"]
ECHO = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.fixture(scope="module")
def job(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a running job of two ranks in a virtual environment, with a secret."""
    folder = tmp_path_factory.mktemp("job")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (folder / "mine").mkdir()
    (folder / "mine" / "train.py").write_text(PROGRAM)
    with service.client() as client:
        client.set_secret("HF_TOKEN", "hush-4711")
        environment = {
            "venv": str(folder / "env"),
            "setup": ["export APP_FROM_SETUP='a b'"],
            "variables": {"APP_MODE": "fast"},
            "secrets": ["HF_TOKEN"],
        }
        spec = {"name": "a b; $(id)", "task": "script", "argv": ["train.py"], "gpus": 2, "environment": environment}
        job_id = client.submit(spec, code=folder / "mine").id
        wait_for_status(client, job_id, "running")
        wait_until(lambda: client.job(job_id).progress is not None, 60, "the first report")
        yield job_id
        client.cancel(job_id)
        wait_for_status(client, job_id, "cancelled")


@pytest.fixture
def environ(service: ServiceProcess) -> dict[str, str]:
    with service.client():
        token = (service.state_dir / "admin_token").read_text().strip()
    return {**os.environ, "TRAINYARD_URL": service.url, "TRAINYARD_TOKEN": token, "TERM": "dumb"}


def result(environ: dict[str, str], *arguments: str) -> Any:
    return json.loads(run_trainyard(environ, "exec", *arguments).stdout)


def test_command_gets_the_environment_of_the_ranks_without_secrets(job: str, environ: dict[str, str]) -> None:
    observe = "import json, os, sys; print(json.dumps([dict(os.environ), sys.prefix, os.getcwd()]))"
    answer = result(environ, job, "--rank", "1", "--json", "--", "python3", "-c", observe)
    variables, prefix, folder = json.loads(answer["stdout"])
    assert prefix == variables["VIRTUAL_ENV"]
    assert Path(prefix).name == "env"
    assert Path(folder, "train.py").is_file()
    assert (variables["APP_FROM_SETUP"], variables["APP_MODE"]) == ("a b", "fast")
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["WORLD_SIZE"]) == ("1", "1", "2")
    assert not variables.keys() & {"HF_TOKEN", "TRAINYARD_TOKEN", "MASTER_PORT", "TRAINYARD_ATTEMPT_FOLDER"}
    assert "hush-4711" not in answer["stdout"]


def test_arguments_reach_the_command_as_they_are(job: str, environ: dict[str, str]) -> None:
    answer = result(environ, "a b; $(id)", "--json", "--", "python3", "-c", ECHO, *ODD)
    assert json.loads(answer["stdout"]) == ODD


def test_output_has_the_node_and_the_exit_code_is_that_of_the_command(job: str, environ: dict[str, str]) -> None:
    done = run_trainyard(environ, "exec", job, "--", "sh", "-c", "echo out; echo err >&2; printf partial; exit 3")
    host = os.uname().nodename
    assert done.returncode == 3
    assert done.stdout == f"{host}: out\n{host}: partial\n"
    assert done.stderr == f"{host}: err\n"
    missing = run_trainyard(environ, "exec", job, "--", "no-such-program")
    assert (missing.returncode, "no-such-program cannot be executed" in missing.stderr) == (127, True)


def test_large_binary_output_is_complete(job: str, environ: dict[str, str]) -> None:
    answer = result(environ, job, "--json", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert (len(answer["stdout"]), answer["exit_code"], answer["truncated"]) == (3_000_000, 0, False)


def test_timeout_ends_the_command_with_its_children(job: str, environ: dict[str, str]) -> None:
    done = run_trainyard(
        environ, "exec", job, "--timeout", "1", "--", "sh", "-c", "trap '' TERM; sleep 4711 & wait; sleep 4711"
    )
    assert (done.returncode, "took too long" in done.stderr) == (124, True)
    assert not commands("4711")


def test_interrupt_ends_the_command(job: str, environ: dict[str, str]) -> None:
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130)):
        process = subprocess.Popen(
            trainyard("exec", job, "--", "sleep", "4712"), env=environ, start_new_session=True, stdout=subprocess.PIPE
        )
        wait_until(lambda: commands("4712"), 60, "the command to run")
        process.send_signal(number)
        assert process.wait(30) == status
        process.communicate()
        wait_until(lambda: not commands("4712"), 30, "the command to end")


def commands(argument: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if line.strip() == f"sleep {argument}"]


def test_shell_has_the_environment_of_the_rank(job: str, environ: dict[str, str]) -> None:
    with on_terminal(trainyard("shell", job, "--rank", "1"), environ) as terminal:
        terminal.wait_for("(rank 1 on ")
        terminal.send("echo rank=$RANK mode=$APP_MODE python=$(command -v python3) token=${HF_TOKEN-none}-\n")
        output = terminal.wait_for("token=none-")
        assert "rank=1 mode=fast python=/" in output
        assert "/env/bin/python3 token=none-" in output
        terminal.send("sleep 4713\n")
        wait_until(lambda: commands("4713"), 30, "the command to run")
        terminal.send("\x03")
        wait_until(lambda: not commands("4713"), 30, "Ctrl-C to end the command")
        terminal.send("exit 7\n")
        assert terminal.wait() == 7


def test_shell_without_a_terminal_names_exec(job: str, environ: dict[str, str]) -> None:
    done = run_trainyard(environ, "shell", job)
    assert (done.returncode, "trainyard exec JOB -- PROGRAM" in done.stderr) == (2, True)


def test_audit_has_the_program_without_its_arguments(job: str, environ: dict[str, str], client: Client) -> None:
    run_trainyard(environ, "exec", job, "--rank", "0", "--", "/bin/echo", "--password=hush")
    run_trainyard(environ, "shell", job, "--rank", "1")
    newest = [entry for entry in client.audit(limit=20) if entry.action == "enter_job"][:2]
    assert [entry.detail for entry in newest] == [
        {"kind": "shell", "rank": 1},
        {"kind": "exec", "rank": 0, "program": "echo"},
    ]
    assert {(entry.target, entry.outcome) for entry in newest} == {(job, "done")}


def test_shell_ends_with_the_job(job: str, client: Client, environ: dict[str, str]) -> None:
    attempt = client.job(job).resource.attempt
    assert attempt is not None
    with on_terminal(trainyard("shell", job), environ) as terminal:
        terminal.wait_for("(rank 0 on ")
        client.cancel(job)
        wait_for_status(client, job, "cancelled")
        assert terminal.wait() != 0
    assert not processes_of(attempt.id)
    done = run_trainyard(environ, "exec", job, "--", "true")
    assert (done.returncode, "needs a job that is running" in done.stderr) == (7, True)
