"""`trainyard doctor --deep`: the environment of a job beside that of a job by sbatch."""

import os
import subprocess
import sys

import httpx
import pytest

from tests.unit.trainyard.fake_service import attempt, error, job, page
from trainyard.cli.environment_checks import _PROGRAM, JobEnvironment, compare_with_sbatch, differences

JOB = "/v1/jobs/a1"
OFFSETS = {"X-Trainyard-Offset": "0", "X-Trainyard-Next-Offset": "9"}
SBATCH = """#!/bin/sh
echo "$@" >> {log}
for argument; do case $argument in --output=*) output=${{argument#--output=}};; esac; script=$argument; done
sh "$script" > "$output"
echo 77
"""


@pytest.fixture
def submissions(monkeypatch, tmp_path, service):
    """Return the log of an sbatch that runs its job at once; the service answers for a job of a cluster."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", '#!/bin/sh\necho "scancel $@" >> {log}\n')):
        (programs / name).write_text(text.format(log=tmp_path / "log"))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    partitions = [{"name": "old", "state": "up"}, {"name": "gpu", "state": "up", "default": True}]
    service.on("GET", "/v1/cluster", {"object": "cluster", "backend": "slurm", "partitions": partitions})
    service.on("POST", "/v1/jobs", httpx.Response(201, json=job("a1")))
    service.on("DELETE", JOB, httpx.Response(204))
    service.on("POST", f"{JOB}/cancel", httpx.Response(202, json=job("a1")))
    monkeypatch.setattr("trainyard.client._sync.jobs.JobCalls.upload", lambda *_: "sha256:" + "0" * 64)
    return tmp_path / "log"


def checked(service, seconds=60.0):
    ticks = iter(range(1000))
    with service.client() as client:
        return {finding.name: finding for finding in compare_with_sbatch(client, seconds, lambda: float(next(ticks)))}


def printed(environ):
    """Return what the program of the job prints with this environment."""
    command = [sys.executable, "-c", _PROGRAM]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=30).stdout


def test_variables_of_the_shell_that_jobs_lack_are_named(service, submissions, monkeypatch):
    for name in ("NCCL_IB_HCA", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "mlx5")
    monkeypatch.setenv("SECRET_OF_MINE", "hush")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ours = {
        "PATH": "/usr/bin",
        "HOME": os.environ["HOME"],
        "OMP_NUM_THREADS": "3",
        "TRAINYARD_ATTEMPT": "a",
        "RANK": "0",
    }
    text = f"rank 0 starts\n{printed(ours)}"
    service.on("GET", JOB, job("a1", status="running"), job("a1", status="succeeded"))
    service.on("GET", f"{JOB}/logs", httpx.Response(200, text=text, headers=OFFSETS))
    findings = checked(service)
    message = findings["variables"].message
    lost, added, changed = message.split("; ")
    assert "NCCL_IB_HCA" in lost
    assert "SECRET_OF_MINE" in lost
    assert (added, changed) == ("only by Trainyard: OMP_NUM_THREADS", "with other values: PATH")
    assert not any(text in message for text in ("SLURM_JOB_ID", "RANK", "TRAINYARD_ATTEMPT", "HOME", "hush", "mlx5"))
    assert (findings["variables"].state, "TRAINYARD_JOB_ENVIRONMENT" in str(findings["variables"].fix)) == (
        "warning",
        True,
    )
    assert (findings["limits"].state, findings["limits"].message) == ("ok", "a job has the limits of a job by sbatch")
    assert "hush" not in text
    assert "--partition=gpu" in submissions.read_text()
    assert service.requests[-1].method == "DELETE"
    assert list(submissions.parent.glob(".trainyard-doctor-*")) == []


@pytest.mark.parametrize(
    ("mine", "theirs", "state"),
    [("1024", "20000", "warning"), ("20000", "unlimited", "warning"), ("unlimited", "1024", "ok"), ("8", "8", "ok")],
)
def test_lower_limits_of_jobs_are_a_warning(mine, theirs, state):
    pair = (JobEnvironment({}, {"Max open files": limit}) for limit in (mine, theirs))
    variables, limits = differences(*pair)
    assert (variables.state, limits.state) == ("ok", state)
    assert (f"open files {mine}, by sbatch {theirs}" in limits.message) == (mine != theirs)


def test_jobs_that_do_not_end_are_cancelled(service, submissions):
    (submissions.parent / "bin" / "sbatch").write_text("#!/bin/sh\necho 77\n")
    service.on("GET", JOB, job("a1", status="pending"))
    service.on("GET", f"{JOB}/logs", httpx.Response(200, text="", headers=OFFSETS))
    findings = checked(service, 3.0)
    assert "job a1 has not printed its environment: pending" in findings["environment"].message
    assert submissions.read_text() == "scancel 77\n"
    assert service.requests[-1].url.path == f"{JOB}/cancel"


def test_a_job_that_did_not_start_is_not_repeated(service, submissions):
    """Its next attempts would let the service blame further nodes."""
    service.on("GET", JOB, job("a1", status="queued", attempt=attempt(number=2)))
    service.on("GET", f"{JOB}/events", page())
    service.on("GET", f"{JOB}/logs", httpx.Response(200, text="", headers=OFFSETS))
    assert "has not printed its environment: queued" in checked(service)["environment"].message
    assert [request.url.path for request in service.requests].count(JOB) == 1
    assert service.requests[-1].url.path == f"{JOB}/cancel"


def test_refusals_are_named(service, submissions):
    (submissions.parent / "bin" / "sbatch").write_text("#!/bin/sh\necho 'error: no account' >&2\nexit 1\n")
    service.on("GET", JOB, job("a1", status="pending"))
    assert "sbatch refused its job: error: no account" in checked(service)["environment"].message
    service.answers["POST", "/v1/jobs"].clear()
    service.on("POST", "/v1/jobs", error(403, "the token may not run code", code="code_role_required"))
    assert "the token may not run code" in checked(service)["environment"].message


def test_nothing_is_compared_without_slurm(service, submissions, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "no sbatch" in checked(service)["environment"].message
    service.answers["GET", "/v1/cluster"].clear()
    service.on("GET", "/v1/cluster", {"object": "cluster", "backend": "local", "partitions": []})
    assert checked(service) == {}
