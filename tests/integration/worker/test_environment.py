"""Ranks in the user's own environment: another Python, modules, setup lines, and what is refused before they start."""

import json
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, processes_of, spooled, store_code, wait_for
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import FinishRecord

PROGRAM = """
import json, os, sys
from pathlib import Path
from trainyard.script import checkpoint_dir, report, should_stop

for name in ("pydantic", "torch", "worker"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} should be missing")
for step in (1, 2, 3):
    report(step, {"loss": 1.0 / step}, total_steps=3)
    assert not should_stop()
state = {"prefix": sys.prefix, "environ": dict(os.environ), "path": sys.path}
(checkpoint_dir() / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(state))
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment that has no package at all."""
    folder = tmp_path_factory.mktemp("environments") / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def run_script(tmp_path: Path, environment: dict[str, Any], **changes: Any) -> tuple[AttemptLayout, FakeService]:
    code = store_code(tmp_path, PROGRAM)
    document = {"task": "script", "argv": ["train.py"], "code": code, "gpus": 2, "environment": environment}
    with FakeService() as service:
        service.secrets = {"HF_TOKEN": "hush-4711"}
        run = Run(tmp_path / "job", service.url, {**document, **changes}, template="script_line", max_restarts=0)
        return run.run(), service


def rejection(attempt: AttemptLayout) -> str:
    record: FinishRecord = finish_of(attempt, 1)
    assert record.reason == "rejected"
    assert record.failure is not None
    assert record.failure.final
    assert not attempt.rank_log(0).exists()
    assert not processes_of(attempt)
    return record.failure.message


@pytest.mark.cpu_seconds(8)
def test_script_needs_no_package_in_its_virtual_environment(tmp_path: Path, venv: Path) -> None:
    setup = ["export APP_FROM_SETUP='a b'", "export APP_MODE=setup", "export RANK=7", 'echo "setup ${HF_TOKEN:-none}"']
    environment = {"venv": str(venv), "setup": setup, "variables": {"APP_MODE": "spec"}, "secrets": ["HF_TOKEN"]}
    attempt, service = run_script(tmp_path, environment)
    assert finish_of(attempt, 1).reason == "completed", attempt.launch_log.read_text()[-2000:]
    assert list(spooled(attempt, 1)) == [1, 2, 3]
    assert len(service.series("train/loss")) == 3
    for rank in (0, 1):
        state = json.loads((attempt.root.parent.parent / "checkpoints" / f"rank-{rank}.json").read_text())
        environ = state["environ"]
        assert state["prefix"] == environ["VIRTUAL_ENV"] == str(venv)
        assert environ["PATH"].startswith(f"{venv}/bin:")
        assert (environ["APP_FROM_SETUP"], environ["APP_MODE"], environ["HF_TOKEN"]) == ("a b", "spec", "hush-4711")
        assert {name: environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")} == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": environ["MASTER_ADDR"],
        }
        assert int(environ["MASTER_PORT"]) > 0
        assert sysconfig.get_path("purelib") not in state["path"]
    log = attempt.launch_log.read_text()
    assert "setup none" in log
    assert "hush-4711" not in log


def run_builtin(tmp_path: Path, venv: Path, **more: Any) -> AttemptLayout:
    changes = {"steps": 3, "epochs": None, "gpus": 1, "strategy": "single", "environment": {"venv": str(venv), **more}}
    with FakeService() as service:
        return Run(tmp_path / "job", service.url, changes, max_restarts=0).run()


@pytest.mark.heavy
def test_builtin_task_runs_in_a_python_that_has_its_packages(tmp_path: Path) -> None:
    venv = tmp_path / "with torch"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    # Every process of this Python adds a line to the file.
    record = "import os, sys; open(os.environ['APP_RECORD'], 'a').write(f'{sys.orig_argv[1:3]} {sys.path}\\n')"
    (packages / "sitecustomize.py").write_text(record)
    attempt = run_builtin(tmp_path, venv, variables={"APP_RECORD": str(tmp_path / "record")})
    record_of_end = finish_of(attempt, 1)
    assert (record_of_end.reason, record_of_end.step) == ("completed", 3), attempt.launch_log.read_text()[-2000:]
    assert list(spooled(attempt, 1)) == [1, 2, 3]
    _, rank = (tmp_path / "record").read_text().splitlines()
    assert rank.startswith("['-m', 'worker']")
    assert str(attempt.packages) in rank


def test_builtin_task_is_refused_with_the_command_that_installs_packages(tmp_path: Path, venv: Path) -> None:
    message = rejection(run_builtin(tmp_path, venv))
    assert message.startswith(f"environment.venv: {venv}/bin/python (Python 3.")
    assert "torch is missing, pydantic is missing" in message
    assert f"To install it: {venv}/bin/python -m pip install 'torch>=2.11' 'pydantic>=" in message


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"python": "/absent/python3"}, "environment.python: /absent/python3 cannot be executed on"),
        ({"python": "/etc/passwd"}, "environment.python: /etc/passwd cannot be executed on"),
        ({"python": "/bin/false"}, "environment.python: /bin/false ended with exit code 1 on"),
        ({"setup": ["echo no scratch here; exit 3"]}, "environment.setup: `echo no scratch here; exit 3` failed with"),
    ],
)
def test_unusable_environment_is_rejected_before_the_ranks(
    tmp_path: Path, environment: dict[str, Any], expected: str
) -> None:
    attempt, service = run_script(tmp_path, environment)
    assert rejection(attempt).startswith(expected)
    assert service.finishes[-1].reason == "rejected"
    if "setup" in environment:
        assert b"no scratch here" in service.logs["a1", "launch"]


def test_stop_request_ends_the_preparation(tmp_path: Path) -> None:
    document = {"task": "script", "argv": ["/p.py"], "environment": {"setup": ["echo begun", "sleep 983"]}}
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=0)
        attempt = run.start()
        wait_for(lambda: attempt.launch_log.exists() and "begun" in attempt.launch_log.read_text(), "the setup")
        assert run.process is not None
        run.process.send_signal(signal.SIGTERM)
        run.wait(30)
    assert finish_of(attempt, 1).reason == "preempted"
    assert not processes_of(attempt)
