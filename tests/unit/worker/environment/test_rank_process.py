"""A rank's process on both sides of a container, with stand-ins for the runtimes that Debian does not have."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

import worker.environment.containers.init_process as init_process
from tests.support.container_stand_ins import PROGRAMS, install
from tests.support.wait import wait_until
from trainyard.contract.spec.containers import ContainerRuntime, Mount
from worker.core.processes import children
from worker.environment.containers.plan import ContainerEnvironment, ContainerPlan
from worker.environment.containers.runtimes import RUNTIMES, ContainerRun

PROGRAM = """
import json, os, pathlib, signal, subprocess, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: got.append(number))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
state = {"environ": dict(os.environ), "pids": [os.getpid(), child.pid], "folder": os.getcwd(), "argv": sys.argv[1:]}
state["umask"] = os.umask(0)
pathlib.Path("state.new").write_text(json.dumps(state))
os.rename("state.new", "state.json")
while len(got) < 3:
    time.sleep(0.01)
print("got", *got, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=PROGRAMS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a rank in a container of each runtime."""
    install(tmp_path / "bin")
    (tmp_path / "program.py").write_text(PROGRAM)
    runtime: ContainerRuntime = request.param
    mounts = (Mount(str(tmp_path), str(tmp_path)),)
    command = ("python3", "-I", str(init_process.__file__))
    runs = RUNTIMES[runtime](ContainerRun("/image", command, mounts, gpus=True, job="17", node="n1"))
    plan = ContainerPlan(runs.argv, runs.variables, {"PYTHONPATH": "/packages"}, ("APP_MODE", "HF_TOKEN"))
    (tmp_path / "plan.json").write_text(json.dumps(asdict(plan)))
    processes = []

    def start_rank(mode: str) -> "subprocess.Popen[str]":
        rank = {"RANK": "1", "APP_MODE": "a b", "HF_TOKEN": "hush-4711", "AWS_SECRET": "host", "LD_PRELOAD": ""}
        environ = {**os.environ, **rank, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        made = ContainerEnvironment(tmp_path / "plan.json").command(["program.py", mode], environ, tmp_path)
        process = subprocess.Popen(
            made.argv,
            env=dict(made.variables),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            umask=0o027,
            start_new_session=True,
        )
        processes.append(process)
        wait_until(lambda: (tmp_path / "state.json").exists() or process.poll() is not None, 20, "the program")
        return process

    yield start_rank
    for process in processes:
        process.kill()
        process.wait()


def state(tmp_path: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((tmp_path / "state.json").read_text())
    return document


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send_all(process: "subprocess.Popen[str]") -> None:
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1):
        process.send_signal(number)


def test_rank_gets_variables_and_signals_and_returns_its_exit_code(start: Start, tmp_path: Path) -> None:
    process = start("ends")
    observed = state(tmp_path)
    environ = observed["environ"]
    assert isinstance(environ, dict)
    assert {name: environ.get(name) for name in ("RANK", "APP_MODE", "HF_TOKEN", "PYTHONPATH", "AWS_SECRET")} == {
        "RANK": "1",
        "APP_MODE": "a b",
        "HF_TOKEN": "hush-4711",
        "PYTHONPATH": "/packages",
        "AWS_SECRET": None,
    }
    assert (observed["folder"], observed["umask"], observed["argv"]) == (str(tmp_path), 0o027, ["ends"])
    send_all(process)
    output, _ = process.communicate(timeout=20)
    assert sorted(output.split()[1:]) == ["10", "12", "15"]
    assert process.returncode == 3
    wait_until(lambda: not any(map(is_running, observed["pids"])), 20, "the end of the child")  # type: ignore[call-overload]


def test_signal_that_killed_the_rank_is_reported(start: Start) -> None:
    process = start("killed")
    send_all(process)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL


def test_container_ends_with_the_process_on_the_node(start: Start, tmp_path: Path) -> None:
    process = start("ends")
    pids = state(tmp_path)["pids"]
    assert all(map(is_running, pids))  # type: ignore[call-overload]
    process.kill()
    wait_until(lambda: not any(map(is_running, pids)), 20, "the end of the rank")  # type: ignore[call-overload]


def test_secrets_are_on_no_command_line_and_not_in_the_runtime(start: Start, tmp_path: Path) -> None:
    process = start("ends")
    (runtime,) = children(process.pid)
    for pid in (process.pid, runtime):
        assert b"hush-4711" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"hush-4711" not in Path(f"/proc/{runtime}/environ").read_bytes()


def test_missing_runtime_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(asdict(ContainerPlan(("no-such-runtime", "run")))))
    made = ContainerEnvironment(tmp_path / "plan.json").command(["-c", ""], os.environ, tmp_path)
    done = subprocess.run(made.argv, env=dict(made.variables), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("there is no program `no-such-runtime` on the PATH of this node")
    assert sys.executable in made.argv
