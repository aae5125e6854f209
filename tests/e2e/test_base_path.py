"""Workers, the command line and clients of trackers behind nginx, below a path that nginx removes or keeps."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.nginx import documented_location, nginx_servers
from tests.support.terminal import run_trainyard
from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess, free_port

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

BASE = "/portal/trainyard"
PROGRAM = """
import mlflow, wandb

mlflow.log_metric("loss", 0.5, step=3)
mlflow.log_text("done", "end.txt")
with wandb.init(name="inner") as run:
    run.log({"accuracy": 0.75})
    print("page", run.url)
"""
READS = """
import sys
import mlflow

job = sys.argv[1]
print(mlflow.MlflowClient().get_run(job).data.metrics["loss"])
print(open(mlflow.artifacts.download_artifacts(run_id=job, artifact_path="end.txt")).read())
"""


@dataclass(frozen=True)
class Proxied:
    """A service behind two proxies: one keeps the path, and the other one, by which workers come, removes it."""

    service: ServiceProcess
    keeping: str
    removing: str
    requests: Path

    @property
    def token(self) -> str:
        return admin_token_file(self.service.state_dir).read_text().strip()

    def run(self, *arguments: str, url: str = "") -> str:
        """Run the command line, and return its output. By default the proxy keeps the path."""
        variables = {"TRAINYARD_URL": url or f"{self.keeping}/", "TRAINYARD_TOKEN": self.token, "TERM": "dumb"}
        done = run_trainyard({**os.environ, **variables}, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder, keeping, removing = tmp_path_factory.mktemp("base"), free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}{BASE}" for port in (keeping, removing)]
    service = ServiceProcess(folder, local_slots="2", tick_seconds="0.3", public_url=urls[0], worker_url=urls[1])
    servers = {keeping: documented_location(BASE, service.url), removing: documented_location(BASE, f"{service.url}/")}
    with nginx_servers(folder / "nginx", servers):
        service.start()
        try:
            service.client().close()
            yield Proxied(service, *urls, folder / "nginx" / "requests.log")
        finally:
            service.stop()


def test_worker_command_line_and_trackers_use_the_path(
    proxied: Proxied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    output = proxied.run("run", "--name", "tracked", "--", "python", "train.py")
    (job,) = set(re.findall(r"job_\w{26}", output))
    assert f"{proxied.keeping}/jobs/{job}" in output
    page = re.findall(r"^page (\S+)$", output, re.MULTILINE)[0]
    assert page.startswith(f"{proxied.keeping}/jobs/{job}/wandb/")
    answer = httpx.get(page, headers={"Accept": "text/html"})
    assert answer.has_redirect_location
    assert str(answer.next_request.url if answer.next_request else "") == f"{proxied.keeping}/jobs/{job}"
    assert "page http" in proxied.run("logs", "tracked")
    assert "accuracy,0,0.75" in proxied.run("metrics", "tracked", "--csv").replace("inner/", "")
    assert job in proxied.run("list", "--json", url=proxied.removing)
    assert f"{proxied.keeping}/sign-in#" in proxied.run("open", "tracked", "--print")
    read = {**os.environ, "MLFLOW_TRACKING_TOKEN": proxied.token}
    command = [sys.executable, "-c", READS, job]
    read |= {"MLFLOW_TRACKING_URI": f"{proxied.keeping}/mlflow"}
    done = subprocess.run(command, env=read, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0.5", "done"], done.stderr
    requested = re.findall(r'"[A-Z]+ (\S+) HTTP/1.1" (\d+) ', proxied.requests.read_text())
    assert all(path.startswith(f"{BASE}/") for path, _ in requested)
    reported = {
        path.split("/")[-1].partition("?")[0]
        for path, status in requested
        if "/v1/attempts/" in path and status == "200"
    }
    assert {"claim", "metrics", "parameters", "finish"} <= reported
