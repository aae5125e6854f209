"""Runs of the real worker: a run directory, a launch, and a service that records what it is told."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import FinishRecord, MetricsBatch
from trainyard.contract.wire.spool import parse_spool

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what, seconds=60):
    limit = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > limit:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.05)
    return value


class FakeService:
    """The worker's routes, with the service's own deduplication."""

    def __init__(self, port=None):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests = []
        self.points = {}
        self.events = {}
        self.checkpoints = {}
        self.finishes = []
        self.logs = {}
        self.heartbeats = []
        self.refuse_claim = False
        self.stop = None
        self.profile = None
        self.lose_answers = 0
        """So many answers are lost after the request was obeyed."""
        self._lock = threading.Lock()
        self._server = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc):
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def start(self):
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with service._lock:
                    status, document = service.obey(urlparse(self.path), self.headers, body)
                    lose = service.lose_answers > 0 and "/metrics" in self.path
                    service.lose_answers -= lose
                if lose:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args):
                pass

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def obey(self, url, headers, body):
        attempt, route = url.path.split("/")[3:5]
        self.requests.append((attempt, route))
        if headers.get("Authorization") != f"Bearer token-{attempt}":
            return 401, {"error": {"code": "unauthorized"}}
        return getattr(self, f"_{route}")(attempt, url, body)

    def _claim(self, attempt, url, body):
        if self.refuse_claim:
            return 409, {"error": {"code": "claimed"}}
        return 200, {"execution": int(attempt.removeprefix("a")) * 10 - 9}

    def _heartbeat(self, attempt, url, body):
        self.heartbeats.append(json.loads(body))
        return 200, {"stop": self.stop, "profile": self.profile, "from_a_newer_service": 1}

    def _metrics(self, attempt, url, body):
        batch = MetricsBatch.model_validate_json(body)
        for point in batch.points:
            self.points[(point.key, point.step, batch.execution)] = repr(point.value)
        return 200, {"accepted": len(batch.points)}

    def _events(self, attempt, url, body):
        document = json.loads(body)
        for event in document["events"]:
            self.events[(document["execution"], event["sequence"])] = event
        return 200, {}

    def _checkpoints(self, attempt, url, body):
        document = json.loads(body)
        self.checkpoints[document["step"]] = document
        return 200, {}

    def _finish(self, attempt, url, body):
        self.finishes.append(FinishRecord.model_validate_json(body))
        return 200, {}

    def _logs(self, attempt, url, body):
        query = parse_qs(url.query)
        stream = self.logs.setdefault((attempt, query["rank"][0]), bytearray())
        if int(query["offset"][0]) != len(stream):
            error = {"message": "", "type": "", "code": "log_offset", "param": "offset"}
            return 409, {"error": error, "next_offset": len(stream)}
        stream += body
        return 200, {"next_offset": len(stream)}

    def events_of_type(self, type_):
        return [event for event in list(self.events.values()) if event["type"] == type_]

    def series(self, key):
        return {(step, execution): value for (k, step, execution), value in self.points.items() if k == key}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A worker that is killed in the middle of a request is what these tests are about."""


class Run:
    """One job's run directory and its attempts."""

    def __init__(self, root, service_url, overrides, *, template="mlp_parity", max_restarts=2):
        self.layout = RunLayout(root)
        self.service_url = service_url
        self.spec = resolve(parse_spec(fill_template(template, overrides)), Site())
        self.max_restarts = max_restarts
        self.process = None

    def prepare(self, number=1):
        """The attempt as the service leaves it."""
        attempt = self.layout.attempt(number)
        attempt.root.mkdir(parents=True)
        document = LaunchDocument(
            job_id="job",
            attempt_id=f"a{number}",
            attempt=number,
            tag=f"ty-test-a{number}",
            service_url=self.service_url,
            execution=number * 10 - 9,
            max_restarts=self.max_restarts,
            ranks_per_node=self.spec.gpus,
            heartbeat_seconds=1,
            spec=self.spec,
        )
        attempt.launch.write_text(document.model_dump_json(by_alias=True))
        attempt.token.write_text(f"token-a{number}")
        self.layout.current.write_text(json.dumps({"attempt_id": f"a{number}", "attempt": number}))
        return attempt

    def start(self, number=1, faults=(), environ=None):
        attempt = self.prepare(number)
        self.process = launch(attempt, faults, environ)
        return attempt

    def run(self, number=1, faults=(), seconds=100, environ=None):
        attempt = self.start(number, faults, environ)
        self.wait(seconds)
        return attempt

    def wait(self, seconds=100):
        try:
            assert self.process.wait(seconds) == 0
        finally:
            self.process.kill()

    def manifest(self, step):
        return str(self.layout.checkpoint(step).manifest)


PLAIN = ("-m", "worker.launcher")
SOON_OVER = (
    "-c",
    "import sys; from worker import launch; "
    "launch._FINISH_SECONDS = launch._LAST_LOGS_SECONDS = 0.5; launch.run(sys.argv[1])",
)
"""The same, for a run whose service will not come: at its end it waits less long for it."""


def launch(attempt, faults=(), environ=None, program=PLAIN):
    env = {
        **os.environ,
        **(environ or {}),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE / "faults")]),
        "TRAINYARD_TEST_FAULTS": json.dumps(list(faults)),
        "OMP_NUM_THREADS": "1",
    }
    with (attempt.root / "outer.log").open("wb") as output:
        command = [sys.executable, *program, str(attempt.root)]
        return subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=attempt.root)


def finish_of(attempt, execution):
    return FinishRecord.model_validate_json(attempt.finish(execution).read_bytes())


def spooled(attempt, execution, key="train/loss"):
    """The rank's own record: step to value, as text."""
    points = {}
    for record in parse_spool(attempt.spool_file(execution)):
        if record.kind == "metrics":
            points.update({p.step: repr(p.value) for p in record.body().points if p.key == key})
    return points


def all_spooled_points(attempt, execution):
    return {
        (p.key, p.step, execution): repr(p.value)
        for record in parse_spool(attempt.spool_file(execution))
        if record.kind == "metrics"
        for p in record.body().points
    }


def processes_of(attempt):
    """Every live process that names the attempt's folder."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(attempt.root).encode() in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def run_layout(world, cases, folder, seconds=150, environ=None):
    """The cases on `world` processes; one result a rank."""
    folder.mkdir(parents=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        **(environ or {}),
    }
    command = [sys.executable, str(HERE / "layout_program.py"), str(folder / "cases.json"), str(folder)]
    ranks = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        status = ranks.wait(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
    assert status == 0, "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in sorted(folder.glob("*.log")))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


__all__ = ["FakeService", "Run", "finish_of", "run_layout", "signal", "spooled", "wait_for"]
