"""Ranks in containers of real runtimes: what they see, and how they stop and end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.harness import (
    ROOT,
    FakeService,
    Run,
    finish_of,
    processes_of,
    spooled,
    store_code,
    wait_for,
)
from tests.support.container_images import make_root, podman_path, require_runtime
from tests.support.docker_engine import base_image, running_engine
from tests.support.terminal import on_terminal
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.containers import ContainerRuntime
from trainyard.contract.spec.site import Site
from trainyard.contract.wire.job_access import CommandEnd, parse_record

PROGRAM = """
import json, os, subprocess, sys, time
from pathlib import Path
from trainyard.script import checkpoint_dir, report, should_stop

mode, rank = sys.argv[1], os.environ["RANK"]
for name in ("pydantic", "torch", "worker"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} should be missing")
observed = {"environ": dict(os.environ), "sets": os.listdir("/sets"), "folder": os.getcwd()}
(checkpoint_dir() / f"rank-{rank}.json").write_text(json.dumps(observed))
if mode == "wait":
    subprocess.Popen([sys.executable, __file__, "child"])
step = 0
while mode != "child" and not (step == 3 and mode in ("run", "fail")):
    step += 1
    report(step, {"loss": 1.0 / step}, total_steps=3 if mode == "run" else 10_000)
    if mode == "fail" and rank == "1":
        sys.exit(3)
    if should_stop():
        break
    time.sleep(0.05)
while mode == "child":
    time.sleep(0.05)
"""
VARIABLES = {"APP_MODE": "a b", "PYTHONPATH": "lib", "LD_LIBRARY_PATH": "/own"}
RUNTIMES = ("charliecloud", "podman", "docker")
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Runtime:
    """A runtime that works on this machine, and an image for it."""

    name: ContainerRuntime
    image: str
    environ: dict[str, str]

    @property
    def site(self) -> Site:
        return Site(container_runtime=self.name, container_images=("*",))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_runtime("podman")
    return make_root(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    name = request.param
    if name == "docker":
        with running_engine() as engine:
            host = {"DOCKER_HOST": engine.environment["DOCKER_HOST"]} if "DOCKER_HOST" in engine.environment else {}
            yield Runtime(name, base_image(engine), host)
        return
    require_runtime(name)
    image = str(request.getfixturevalue("root"))
    path = podman_path(tmp_path_factory.mktemp("wrapper")) if name == "podman" else os.environ["PATH"]
    yield Runtime(name, image, {"PATH": path})


@pytest.fixture
def script(tmp_path: Path, runtime: Runtime) -> Any:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "part").touch()
    code = store_code(tmp_path, PROGRAM)

    def make(service: FakeService, mode: str) -> Run:
        service.secrets = {"HF_TOKEN": "hush-4711"}
        read_only = runtime.name != "charliecloud"
        container = {"image": runtime.image, "mounts": [f"{tmp_path}/sets:/sets{':ro' * read_only}"]}
        document = {
            "task": "script",
            "argv": ["train.py", mode],
            "code": code,
            "gpus": 2,
            "environment": {"container": container, "variables": VARIABLES, "secrets": ["HF_TOKEN"]},
        }
        return Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=0, site=runtime.site)

    return make


def logs(attempt: AttemptLayout) -> str:
    files = (attempt.launch_log, attempt.rank_log(0), attempt.rank_log(1))
    return "\n".join(path.read_text()[-2000:] for path in files if path.exists())


def test_script_in_an_image_without_torch_reports(script: Any, runtime: Runtime) -> None:
    host = {"APP_OF_THE_HOST": "1", "AWS_SECRET_ACCESS_KEY": "x", "PYTHONPATH": "/host", "LD_LIBRARY_PATH": "/host"}
    with FakeService() as service:
        attempt = script(service, "run").run(environ={**runtime.environ, **host})
    assert finish_of(attempt, 1).reason == "completed", logs(attempt)
    assert list(spooled(attempt, 1)) == [1, 2, 3]
    assert len(service.series("train/loss")) == 3
    for rank in (0, 1):
        observed = json.loads((attempt.root.parent.parent / "checkpoints" / f"rank-{rank}.json").read_text())
        environ = observed["environ"]
        assert (environ["RANK"], environ["WORLD_SIZE"], environ["APP_MODE"]) == (str(rank), "2", "a b")
        assert environ["HF_TOKEN"] == "hush-4711"
        assert not environ.keys() & {*host} - {*VARIABLES}
        assert environ["PYTHONPATH"] == f"{attempt.packages}:{attempt.work}/lib"
        assert environ["LD_LIBRARY_PATH"] == "/own"
        assert environ["PATH"] == "/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"
        assert (observed["sets"], observed["folder"]) == (["part"], str(attempt.work))
    assert not processes_of(attempt)


def test_stop_request_reaches_the_ranks(script: Any, runtime: Runtime) -> None:
    with FakeService() as service:
        run = script(service, "slow")
        attempt = run.start(environ=runtime.environ)
        wait_for(lambda: len(service.series("train/loss")) >= 5 or run.process.poll() is not None, "five steps")
        run.process.send_signal(signal.SIGTERM)
        run.wait()
    record = finish_of(attempt, 1)
    assert (record.reason, record.failure) == ("preempted", None), logs(attempt)
    assert record.step >= 5


def test_exit_code_of_a_rank_is_its_failure(script: Any, runtime: Runtime) -> None:
    with FakeService() as service:
        attempt = script(service, "fail").run(environ=runtime.environ)
    record = finish_of(attempt, 1)
    assert record.reason == "error"
    assert record.failure is not None
    assert record.failure.rank == 1
    assert record.failure.message.startswith("the program ended with exit code 3"), logs(attempt)
    assert not processes_of(attempt)


def test_killed_launcher_leaves_no_process(script: Any, runtime: Runtime) -> None:
    with FakeService() as service:
        run = script(service, "wait")
        attempt = run.start(environ=runtime.environ)
        wait_for(lambda: len(service.series("train/loss")) >= 5 or run.process.poll() is not None, "five steps")
        assert len(processes_of(attempt)) > 4
        run.process.kill()
        run.process.wait()
        wait_for(lambda: not processes_of(attempt), "the end of all processes")


def test_companion_runs_in_a_container_of_its_own(script: Any, runtime: Runtime) -> None:
    observe = "import json, os; print(json.dumps([dict(os.environ), os.listdir('/sets'), os.getcwd(), os.getuid()]))"
    with FakeService() as service:
        run = script(service, "slow")
        attempt = run.start(environ={**runtime.environ, "TRAINYARD_ATTEMPT": "a1"})
        wait_for(lambda: len(service.series("train/loss")) >= 5 or run.process.poll() is not None, "five steps")
        # Most variables are those of the rank, not of this process.
        enter = ["/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m", "worker.environment.companion"]
        enter += [str(attempt.root)]
        environ = {**os.environ, **runtime.environ, "TERM": "xterm", "TRAINYARD_TOKEN": "x"}

        def execute(*command: str, options: Sequence[str] = ()) -> tuple[int, bytes]:
            done = subprocess.run(
                [*enter, "exec", "--rank", "1", *options, "--", *command],
                env=environ,
                stdout=subprocess.PIPE,
                timeout=60,
                check=True,
            )
            records = [parse_record(line) for line in done.stdout.splitlines()]
            end = records.pop()
            assert isinstance(end, CommandEnd), done
            assert end.exit_code != 125, end.message
            errors = b"".join(one[1] for one in records if isinstance(one, tuple) and one[0].stream == "stderr")
            print(errors.decode(errors="replace"), file=sys.stderr)
            return end.exit_code, b"".join(one[1] for one in records if isinstance(one, tuple))

        status, output = execute("python3", "-c", observe)
        variables, sets, folder, _ = json.loads(output.splitlines()[-1])
        assert (status, sets, folder) == (0, ["part"], str(attempt.work))
        assert (variables["RANK"], variables["APP_MODE"]) == ("1", "a b")
        assert not variables.keys() & {"HF_TOKEN", "TRAINYARD_TOKEN", "TRAINYARD_ATTEMPT_FOLDER", "MASTER_PORT"}
        assert execute("sh", "-c", "exit 3")[0] == 3
        assert execute("sleep", "4718", options=["--timeout", "1"])[0] == 124
        with on_terminal([*enter, "shell", "--rank", "1"], environ) as terminal:
            terminal.wait_for("(rank 1 on ")
            terminal.send("tty; echo rank=$RANK mode=$APP_MODE sets=$(ls /sets) token=${HF_TOKEN-none}-\n")
            shown = terminal.wait_for("token=none-")
            assert "rank=1 mode=a b sets=part" in shown
            terminal.send("sleep 4719\n")
            wait_for(lambda: "sleep 4719" in commands(), "the command to run")
            terminal.send("\x03")
            wait_for(lambda: "sleep 4719" not in commands(), "Ctrl-C to end the command")
            terminal.send("exit 7\n")
            assert terminal.wait() == 7
        with on_terminal([*enter, "shell", "--rank", "0"], environ) as terminal:
            terminal.wait_for("(rank 0 on ")
            terminal.send("sleep 4720\n")
            wait_for(lambda: "sleep 4720" in commands(), "the command to run")
        # What was on the terminal ends with it.
        wait_for(lambda: "sleep 4720" not in commands(), "the command to end")
        assert not list(attempt.container.glob("control-*")) or terminal.process.returncode == -signal.SIGKILL
        assert run.process.poll() is None, logs(attempt)
        run.process.send_signal(signal.SIGTERM)
        run.wait()
    assert finish_of(attempt, 1).reason == "preempted", logs(attempt)


def commands() -> list[str]:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_builtin_task_is_rejected_with_what_the_image_lacks(tmp_path: Path, runtime: Runtime) -> None:
    environment = {"container": {"image": runtime.image}}
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, {"environment": environment}, site=runtime.site)
        attempt = run.run(environ=runtime.environ)
    record = finish_of(attempt, 1)
    assert record.reason == "rejected", logs(attempt)
    assert record.failure is not None
    assert record.failure.message.startswith("environment.container: ")
    assert "pip install" in record.failure.message
    assert "torch" in record.failure.message


def test_missing_image_is_rejected_before_the_ranks_start(tmp_path: Path, runtime: Runtime) -> None:
    image = "localhost/absent:1" if runtime.name == "docker" else f"{tmp_path}/absent"
    with FakeService() as service:
        document = {"environment": {"container": {"image": image}}}
        run = Run(tmp_path / "job", service.url, document, site=runtime.site)
        attempt = run.run(environ=runtime.environ)
    record = finish_of(attempt, 1)
    assert record.reason == "rejected", logs(attempt)
    assert record.failure is not None
    assert record.failure.message.startswith("environment.container")
    assert not attempt.rank_log(0).exists()
