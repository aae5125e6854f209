"""Submission through the submit server, with a program in place of sbatch."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.scheduler.base import Accepted, Ambiguous, LaunchPlan, Rejected, SubmitOutcome
from service.scheduler.slurm import submit_client
from service.scheduler.slurm.scheduler import SlurmScheduler
from tests.support import local_service
from tests.support.wait import wait_until

ENVIRONMENT = 'env -0 > "$PWD/environment"; echo "Submitted batch job 7"'
LOST = 'echo called >> "$PWD/calls"; kill -9 $PPID; sleep 60'
SLOW = 'echo $$ > "$PWD/sbatch_pid"; exec sleep 60'


class Cluster:
    """A scheduler whose sbatch is a script, and attempts to submit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = root / "bin"
        self.programs.mkdir()
        (self.programs / "srun").write_text("#!/bin/sh\nexit 1\n")  # submitit looks for it, and never runs it here
        (self.programs / "srun").chmod(0o755)
        self.scheduler = SlurmScheduler(submit_seconds=30)

    def submit(self, name: str, sbatch: str = 'echo "Submitted batch job 7"') -> SubmitOutcome:
        (self.programs / "sbatch").write_text(f"#!/bin/sh\n{sbatch}\n")
        (self.programs / "sbatch").chmod(0o755)
        return self.scheduler.submit(self.plan(name))

    def plan(self, name: str) -> LaunchPlan:
        folder = self.folder(name)
        folder.mkdir()
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "MY_FLAG": f"of {name}"}
        return LaunchPlan(
            tag=f"ty-{name}", folder=folder, ranks=1, environment=environment, script="#!/bin/sh\n", submission="s1"
        )

    def folder(self, name: str) -> Path:
        return self.root / name

    @property
    def server(self) -> submit_client._Server:
        server = self.scheduler._submit_client._server
        assert server is not None
        return server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    if (server := made.scheduler._submit_client._server) is not None:
        server.end()


def variables(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().split("\0") if line)


def test_one_server_submits_each_attempt_with_its_own_environment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("SLURM_CONF", "/etc/lab/slurm.conf")
    assert cluster.submit("a", ENVIRONMENT) == Accepted("7")
    first = cluster.server
    assert cluster.submit("b", ENVIRONMENT) == Accepted("7")
    assert cluster.server is first
    for name in ("a", "b"):
        passed = variables(cluster.folder(name) / "environment")
        assert set(passed) - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "MY_FLAG", "SLURM_CONF"}
        assert passed["MY_FLAG"] == f"of {name}"


def test_the_answer_stays_in_the_folder_for_the_next_service(cluster: Cluster) -> None:
    """The service may be killed before it has read what its submitter sends."""

    def recorded(name: str, submission: str = "s1") -> SubmitOutcome | None:
        return SlurmScheduler(submit_seconds=30).recorded_answer(cluster.folder(name), submission)

    cluster.submit("a")
    assert recorded("a") == Accepted("7")
    assert recorded("a", "s2") is None, "the answer to an earlier submission"
    refusal = "sbatch: error: Batch job submission failed: Requested partition configuration not available now"
    refused = cluster.submit("b", f"echo '{refusal}' >&2; exit 1")
    assert isinstance(refused, Rejected)
    assert recorded("b") == refused
    cluster.submit("c", LOST)
    assert recorded("c") is None, "sbatch was called, and its answer is unknown"
    assert recorded("d") is None


def test_a_killed_server_is_replaced(cluster: Cluster) -> None:
    cluster.submit("a")
    first = cluster.server
    first.process.kill()
    first.process.wait()
    assert cluster.submit("b") == Accepted("7")
    assert cluster.server is not first


def test_a_server_is_replaced_after_its_number_of_requests(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_client, "_MAX_REQUESTS", 1)
    cluster.submit("a")
    first = cluster.server
    assert cluster.submit("b") == Accepted("7")
    assert first.process.returncode is not None


def test_a_hung_server_is_replaced_and_submits_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.submit("a")
    hung = cluster.server
    hung.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(submit_client, "_START_SECONDS", 0.3)
    outcome = cluster.submit("b", 'touch "$PWD/called"; echo "Submitted batch job 8"')
    assert isinstance(outcome, Ambiguous)
    assert hung.process.returncode is not None
    monkeypatch.undo()
    assert cluster.submit("c", 'echo "Submitted batch job 9"') == Accepted("9")
    assert not (cluster.folder("b") / "called").exists()


def test_a_request_whose_service_is_gone_is_not_submitted(cluster: Cluster) -> None:
    cluster.submit("a")
    server, plan = cluster.server, cluster.plan("b")
    server.process.send_signal(signal.SIGSTOP)
    request = {"folder": str(plan.folder), "script": plan.script, "nodes": 1, "environment": dict(plan.environment)}
    limits = {"submission": "s1", "target": "json:dumps", "limit_seconds": 30, "deadline": time.monotonic() + 60}
    ours, theirs = socket.socketpair()
    log = cluster.root / "log"
    with ours, theirs, log.open("wb") as file:
        socket.send_fds(server.channel, [b"\0"], [theirs.fileno(), file.fileno()])
        ours.sendall(json.dumps(request | limits).encode())
    server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "BrokenPipeError" in log.read_text(), what="the submitter to end")
    assert not list(plan.folder.iterdir())


def test_a_killed_submitter_leaves_the_server_running(cluster: Cluster) -> None:
    cluster.submit("a")
    server = cluster.server
    assert isinstance(cluster.submit("b", LOST), Ambiguous)
    assert (cluster.folder("b") / "calls").read_text() == "called\n", "it is not submitted a second time"
    assert cluster.submit("c") == Accepted("7")
    assert cluster.server is server


def test_sbatch_is_killed_at_the_time_limit(cluster: Cluster) -> None:
    cluster.submit("a")
    cluster.scheduler._submit_seconds = 0.5
    assert isinstance(cluster.submit("b", SLOW), Ambiguous)
    assert not psutil.pid_exists(int((cluster.folder("b") / "sbatch_pid").read_text()))


def test_a_stopped_submitter_is_killed_with_its_sbatch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = cluster.folder("b") / "sbatch_pid"
    read = submit_client._read

    def read_until_the_deadline(connection: socket.socket, deadline: float, *, line: bool = False) -> bytes:
        if not line:
            wait_until(lambda: pid_file.exists() and pid_file.read_text(), what="sbatch to run")
        return read(connection, deadline if line else 0, line=line)

    monkeypatch.setattr(submit_client, "_read", read_until_the_deadline)
    assert isinstance(cluster.submit("b", f"kill -STOP $PPID; {SLOW}"), Ambiguous)
    pid = int(pid_file.read_text())
    wait_until(lambda: not psutil.pid_exists(pid), what="sbatch to be killed")


def test_the_server_ends_with_a_killed_service(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom service.scheduler.slurm.submit_client import _Server\n"
        "server = _Server.start()\nprint(server.process.pid, flush=True)\nsys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": str(local_service.ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as service:
        assert service.stdout is not None
        server = psutil.Process(int(service.stdout.readline()))
        service.kill()
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, what="the server to end")
