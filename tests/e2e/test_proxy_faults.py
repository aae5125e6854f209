"""A service behind nginx that answers for it: no point, event or byte of a log is lost or stored twice."""

import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.support.http_proxy import http_proxy
from tests.support.live import attempt_of, run_of, wait_for_status
from tests.support.nginx import FOLDERS, start_nginx
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.reports import MetricsBatch
from trainyard.contract.wire.spool import parse_spool
from trainyard.demo import ServiceProcess, free_port

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

CONFIGURATION = """
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_rlimit_nofile 4096;
events {{}}
http {{
    default_type text/html;
    log_format answers "$setting $job $request_uri $status";
    access_log {folder}/answers.log answers;
    {folders}
    map_hash_bucket_size 256;
    map $http_authorization $job {{
        default 0;
        {jobs}
    }}
    server {{
        listen 127.0.0.1:{port};
        set $setting {setting};
        set $target {service};
        proxy_read_timeout 60s;
        location / {{
            rewrite ^ /job-$job last;
        }}
        location = /job-0 {{
            proxy_pass $target$request_uri;
        }}
        {locations}
    }}
}}
"""
LOCATION = """location = /job-{number} {{
            {directives}
            proxy_pass $target$request_uri;
        }}
"""
PROGRAM = """
import pathlib, sys, time
from trainyard.script import _state_once, report

step = 0
while not pathlib.Path(sys.argv[1]).exists():
    step += 1
    report(step, {"value": float(step)})
    print("line", step, flush=True)
    if step % 20 == 0:
        _state_once(f"Event {step}", f"event {step}")
    time.sleep(0.2)
"""
STATUSES = (400, 401, 403, 404, 409, 413, 418, 422, 429, 500, 503, 599)
EVENTS = ("worker.report_adjusted", "reports_rejected", "worker.reports_rejected")
EVERY_STATUS = tuple(status for status in range(400, 600) if status != 444)
"""nginx has no answer 444: it drops the connection."""
OTHER_FAULTS = {
    "signs in": 'return 200 "<html>sign in</html>";',
    "accepts": "return 204;",
    "redirects": "return 302 https://sso.example/;",
    "drops connections": "return 444;",
    "does not reach the service": "set $target http://127.0.0.1:1;",
    "limits bodies": "client_max_body_size 600;",
    "truncates answers": "set $target {cutting};",
    "delays answers": "set $target {late};",
    "delays answers for longer than a worker waits": "set $target {too_late};",
    "does not wait for the service": "set $target {late}; proxy_read_timeout 1s;",
}
Faults = list[tuple[str, str]]
"""Names and directives."""


def faults(statuses: Sequence[int]) -> Faults:
    answers = [(f"answers {status}", f'return {status} "<html>not the service</html>";') for status in statuses]
    return answers + list(OTHER_FAULTS.items())


class Proxy:
    """nginx before a service, with a location for the requests of each job."""

    def __init__(self, folder: Path, port: int, service: str, upstreams: Mapping[str, str]) -> None:
        self._folder, self._port, self._service, self._upstreams = folder, port, service, upstreams
        self._answers = folder / "answers.log"
        self._setting = 0
        self._configuration = folder / "nginx.conf"
        self._write([], [])
        self._process = start_nginx(self._configuration)

    def set_faults(self, tokens: Sequence[str], directives: Sequence[str]) -> None:
        """Set what the proxy does with the requests of each worker, known by its token."""
        self._write(tokens, [text.format_map(self._upstreams) for text in directives])
        self._process.send_signal(signal.SIGHUP)

    def await_reports(self, jobs: int) -> None:
        """Wait until a request with points of each job was answered as it is set. nginx applies a setting later."""

        def answered() -> bool:
            pattern = rf"^{self._setting} ([1-9]\d*) \S+/metrics "
            return len(set(re.findall(pattern, self._answers.read_text(), re.MULTILINE))) == jobs

        wait_until(answered, 90, "a report of every job to meet its fault")

    def statuses(self) -> set[int]:
        """Return the statuses of all answers to reports of points."""
        return {int(status) for status in re.findall(r"/metrics (\d+)$", self._answers.read_text(), re.MULTILINE)}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def _write(self, tokens: Sequence[str], directives: Sequence[str]) -> None:
        self._setting += 1
        locations = [LOCATION.format(number=n, directives=text) for n, text in enumerate(directives, 1)]
        text = CONFIGURATION.format(
            folder=self._folder,
            folders=FOLDERS.format(folder=self._folder),
            port=self._port,
            setting=self._setting,
            service=self._service,
            jobs="\n".join(f'"Bearer {token}" {number};' for number, token in enumerate(tokens, 1)),
            locations="".join(locations),
        )
        self._configuration.write_text(text)


@contextmanager
def service_behind_proxy(folder: Path, jobs: int) -> Iterator[tuple[ServiceProcess, Proxy]]:
    """Yield a service whose workers come by the proxy."""
    port = free_port()
    service = ServiceProcess(folder, local_slots=str(jobs), tick_seconds="0.3", public_url=f"http://127.0.0.1:{port}")
    with (
        http_proxy(service.port, is_cutting=True) as cutting,
        http_proxy(service.port, seconds=2) as late,
        http_proxy(service.port, seconds=8) as too_late,
    ):
        servers = {"cutting": cutting, "late": late, "too_late": too_late}
        upstreams = {name: f"http://127.0.0.1:{one.server_port}" for name, one in servers.items()}
        proxy = Proxy(folder, port, service.url, upstreams)
        try:
            service.start()
            try:
                yield service, proxy
            finally:
                service.stop()
        finally:
            proxy.stop()


@pytest.mark.parametrize(
    ("statuses", "jobs", "seconds"),
    [(STATUSES, 1, 0), pytest.param(EVERY_STATUS, 21, 20, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])],
)
def test_answers_of_a_proxy_lose_nothing(tmp_path: Path, statuses: Sequence[int], jobs: int, seconds: float) -> None:
    """Each job has the next fault of its own sequence at the same time as all others."""
    ended = tmp_path / "ended"
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    of_jobs = [faults(statuses)[first::jobs] for first in range(jobs)]
    rounds = list(zip_longest(*of_jobs, fillvalue=("", "")))
    with service_behind_proxy(tmp_path, jobs) as (service, proxy), service.client() as client:
        spec = {"version": 1, "task": "script", "argv": ["train.py", str(ended)], "code": client.upload(code)}
        ids = [client.submit({**spec, "name": f"job-{number}"}).id for number in range(jobs)]
        for of_round in rounds:
            await_new_points(client, ids, f"points before the proxy {', '.join(name for name, _ in of_round)}")
            tokens = [attempt_of(run_of(service.runs_dir, one), 1).token.read_text().strip() for one in ids]
            until = time.monotonic() + seconds
            proxy.set_faults(tokens, [directives for _, directives in of_round])
            proxy.await_reports(jobs)
            # The last faults are there at the end of the jobs.
            if of_round == rounds[-1]:
                ended.touch()
            time.sleep(max(0.0, until - time.monotonic()))
            proxy.set_faults(tokens, [""] * jobs)
        for one in ids:
            check_complete(client, service, one)
        assert proxy.statuses() >= set(statuses)


def await_new_points(client: Client, ids: Sequence[str], what: str) -> None:
    before = {one: len(stored_steps(client, one)) for one in ids}
    for one in ids:
        wait_until(lambda one=one: len(stored_steps(client, one)) > before[one], 120, what)


def check_complete(client: Client, service: ServiceProcess, job_id: str) -> None:
    done = wait_for_status(client, job_id, "succeeded", "failed", seconds=300)
    assert done.status == "succeeded", done.status_message
    attempt = attempt_of(run_of(service.runs_dir, job_id), 1)
    log = attempt.rank_log(0).read_bytes()
    last = int(re.findall(rb"line (\d+)", log)[-1])
    assert stored_steps(client, job_id) == list(range(1, last + 1))
    assert client.logs(job_id).data == log
    events = [(one.type, one.message) for one in client.events(job_id) if one.type in EVENTS]
    assert events == [(EVENTS[0], f"Event {step}") for step in range(20, last + 1, 20)]
    # The launcher's own points too, of which the service reads those from the spool that the proxy refused to the end.
    spooled = [record.body() for path in attempt.spool.glob("*.jsonl") for record in parse_spool(path)]
    logged = [(point.key, point.step) for one in spooled if isinstance(one, MetricsBatch) for point in one.points]
    assert sorted((point.key, point.step) for point in client.points(job_id)) == sorted(logged)
    assert any(key.startswith("system/node-0/") for key, _ in logged)


def stored_steps(client: Client, job_id: str) -> list[int]:
    return [point.step for point in client.points(job_id, "train/value")]
