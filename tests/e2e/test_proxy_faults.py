"""A service behind nginx that answers for it: no point, event or byte of a log is lost or stored twice."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.live import attempt_of, run_of, wait_for_status
from tests.support.packages import install
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.spool import PUT_ASIDE_SUFFIX
from trainyard.demo import ServiceProcess, free_port

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

CONFIGURATION = """
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    log_format answers "$request_uri $status";
    access_log {folder}/answers.log answers;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            set $target {service};
            include {folder}/fault.conf;
            proxy_pass $target$request_uri;
            proxy_read_timeout 1s;
        }}
    }}
}}
"""
PROGRAM = """
import pathlib, sys, time
from trainyard.script import report

step = 0
while not pathlib.Path(sys.argv[1]).exists():
    step += 1
    report(step, {"value": float(step)})
    print("line", step, flush=True)
    time.sleep(0.1)
"""
FAULTS = {
    **{
        f"answers {status}": f'return {status} "<html>not the service</html>";'
        for status in (400, 401, 403, 404, 409, 413, 418, 422, 429, 500, 503, 599)
    },
    "signs in": 'return 200 "<html>sign in</html>";',
    "accepts": "return 204;",
    "redirects": "return 302 https://sso.example/;",
    "drops connections": "return 444;",
    "does not reach the service": "set $target http://127.0.0.1:1;",
    "limits bodies": "client_max_body_size 600;",
}


class Proxy:
    """nginx before a service."""

    def __init__(self, folder: Path, port: int, service: str) -> None:
        if shutil.which("nginx") is None:
            install("nginx", "nginx-light")
        self._answers = folder / "answers.log"
        self._fault = folder / "fault.conf"
        self._fault.touch()
        configuration = folder / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder, port=port, service=service))
        command = ["nginx", "-c", str(configuration), "-e", "stderr", "-g", "daemon off; user root;"]
        self._process = subprocess.Popen(command)

    def set_fault(self, directives: str) -> None:
        self._fault.write_text(directives)
        self._process.send_signal(signal.SIGHUP)

    def await_report(self) -> None:
        """Wait until the next request with points was answered."""
        size = self._answers.stat().st_size
        wait_until(lambda: "/metrics " in self._answers.read_text()[size:], 60, "a report to meet the fault")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@contextmanager
def service_behind_proxy(folder: Path) -> Iterator[tuple[ServiceProcess, Proxy]]:
    """Yield a service whose workers come by the proxy."""
    port = free_port()
    service = ServiceProcess(folder, local_slots="2", tick_seconds="0.3", public_url=f"http://127.0.0.1:{port}")
    proxy = Proxy(folder, port, service.url)
    try:
        service.start()
        try:
            yield service, proxy
        finally:
            service.stop()
    finally:
        proxy.stop()


def test_answers_of_a_proxy_lose_nothing(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    with service_behind_proxy(tmp_path) as (service, proxy), service.client() as client:
        spec = {"version": 1, "task": "script", "argv": ["train.py", str(ended)], "code": client.upload(code)}
        job = client.submit(spec)
        for fault, directives in FAULTS.items():
            await_new_point(client, job.id, f"points before the proxy {fault}")
            proxy.set_fault(directives)
            proxy.await_report()
            proxy.set_fault("")
        await_new_point(client, job.id, "points after the faults")
        ended.touch()
        done = wait_for_status(client, job.id, "succeeded", "failed", seconds=120)
        assert done.status == "succeeded", done.status_message
        attempt = attempt_of(run_of(service.runs_dir, job.id), 1)
        log = attempt.rank_log(0).read_bytes()
        last = int(re.findall(rb"line (\d+)", log)[-1])
        assert stored_steps(client, job.id) == list(range(1, last + 1))
        assert client.logs(job.id).data == log
        assert not list(attempt.spool.glob(f"*{PUT_ASIDE_SUFFIX}")), "no record was at fault"


def await_new_point(client: Client, job_id: str, what: str) -> None:
    before = len(stored_steps(client, job_id))
    wait_until(lambda: len(stored_steps(client, job_id)) > before, 90, what)


def stored_steps(client: Client, job_id: str) -> list[int]:
    return [point.step for point in client.points(job_id, "train/value")]
