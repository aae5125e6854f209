"""Runs of the real worker: a run directory, a launcher, and a fake service that records the reports."""

import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeVar
from unittest.mock import patch
from urllib.parse import ParseResult, parse_qs, urlparse

from trainyard.client.code_archive import pack
from trainyard.contract.http import API_HEADER, API_VERSION
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.spec.user_code import code_archive
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.launch import CurrentAttempt, LaunchDocument
from trainyard.contract.wire.reports import FinishRecord, MetricsBatch
from trainyard.contract.wire.spool import parse_spool
from trainyard.demo import free_port

T = TypeVar("T")
Answer = tuple[int, dict[str, Any]]
"""Status and document of a response."""
Faults = Sequence[dict[str, Any]]
Environ = dict[str, str] | None

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def store_code(root: Path, program: str, **files: str) -> str:
    """Store an archive with `train.py` and further modules where launchers below `root` look for it; its digest."""
    folder = root / "mine"
    folder.mkdir()
    for name, text in {"train": program, **files}.items():
        (folder / f"{name}.py").write_text(text)
    archive = pack(folder)
    stored = code_archive(root, archive.digest)
    stored.parent.mkdir()
    stored.write_bytes(archive.data)
    return archive.digest


def wait_for(condition: Callable[[], T | Literal[False] | None], what: str, seconds: float = 60) -> T:
    limit = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > limit:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.05)
    return value


class FakeService:
    """The worker routes, with deduplication as in the service."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[tuple[str, str]] = []
        self.points: dict[tuple[str, int, int], str] = {}
        self.system_points: dict[tuple[str, int, int], str] = {}
        self.events: dict[tuple[int, int], dict[str, Any]] = {}
        self.parameters: dict[str, Any] = {}
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self.finishes: list[FinishRecord] = []
        self.logs: dict[tuple[str, str], bytearray] = {}
        self.heartbeats: list[dict[str, Any]] = []
        self.refuse_claim = False
        self.secrets: dict[str, str] = {}
        self.stop: str | None = None
        self.profile: dict[str, Any] | None = None
        self.lose_answers = 0
        """Number of responses that are lost after their request was handled."""
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def __enter__(self) -> "FakeService":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def start(self) -> "FakeService":
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with service._lock:
                    status, document = service.handle(urlparse(self.path), self.headers, body)
                    lose = service.lose_answers > 0 and "/metrics" in self.path
                    service.lose_answers -= lose
                if lose:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.send_header(API_HEADER, API_VERSION)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def handle(self, url: ParseResult, headers: Message, body: bytes) -> Answer:
        attempt, route = url.path.split("/")[3:5]
        self.requests.append((attempt, route))
        if headers.get("Authorization") != f"Bearer token-{attempt}":
            return 401, {"error": {"code": "unauthorized"}}
        handler: Callable[[str, ParseResult, bytes], Answer] = getattr(self, f"_{route}")
        return handler(attempt, url, body)

    def _claim(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        if self.refuse_claim:
            return 409, {"error": {"code": "claimed"}}
        return 200, {"execution": int(attempt.removeprefix("a")) * 10 - 9, "secrets": self.secrets}

    def _heartbeat(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        self.heartbeats.append(json.loads(body))
        return 200, {"stop": self.stop, "profile": self.profile, "from_a_newer_service": 1}

    def _metrics(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        batch = MetricsBatch.model_validate_json(body)
        for point in batch.points:
            points = self.system_points if point.key.startswith(SYSTEM_PREFIXES) else self.points
            points[(point.key, point.step, batch.execution)] = repr(point.value)
        return 200, {"accepted": len(batch.points)}

    def _events(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        document = json.loads(body)
        for event in document["events"]:
            self.events[(document["execution"], event["sequence"])] = event
        return 200, {}

    def _parameters(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        self.parameters |= json.loads(body)["parameters"]
        return 200, {}

    def _checkpoints(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        document = json.loads(body)
        self.checkpoints[document["step"]] = document
        return 200, {}

    def _finish(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        self.finishes.append(FinishRecord.model_validate_json(body))
        return 200, {}

    def _logs(self, attempt: str, url: ParseResult, body: bytes) -> Answer:
        query = parse_qs(url.query)
        stream = self.logs.setdefault((attempt, query["rank"][0]), bytearray())
        if int(query["offset"][0]) != len(stream):
            error = {"message": "", "type": "", "code": "log_offset", "param": "offset"}
            return 409, {"error": error, "next_offset": len(stream)}
        stream += body
        return 200, {"next_offset": len(stream)}

    def events_of_type(self, type_: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events.values()) if event["type"] == type_]

    def series(self, key: str) -> dict[tuple[int, int], str]:
        return {(step, execution): value for (k, step, execution), value in self.points.items() if k == key}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the errors of connections whose worker was killed."""


class Run:
    """The run directory of one job, and its attempts."""

    def __init__(
        self,
        root: Path,
        service_url: str,
        overrides: dict[str, Any],
        *,
        template: str | None = "mlp_parity",
        max_restarts: int = 2,
        nodes: int = 1,
        site: Site | None = None,
    ) -> None:
        self.nodes = nodes
        self.site = site or Site()
        self.layout = RunLayout(root)
        self.service_url = service_url
        document = fill_template(template, overrides) if template else overrides
        self.spec = resolve(parse_spec(document), self.site)
        self.max_restarts = max_restarts
        self.process: subprocess.Popen[bytes] | None = None
        """The launcher of node 0."""
        self.other_nodes: list[subprocess.Popen[bytes]] = []

    def prepare(self, number: int = 1) -> AttemptLayout:
        """Write the attempt's folder as the service does."""
        attempt = self.layout.attempt(str(number))
        attempt.root.mkdir(parents=True)
        document = LaunchDocument(
            job_id="job",
            attempt_id=f"a{number}",
            attempt=number,
            tag=f"ty-test-a{number}",
            service_url=self.service_url,
            execution=number * 10 - 9,
            max_restarts=self.max_restarts,
            nodes=self.nodes,
            ranks_per_node=self.spec.gpus // self.nodes,
            heartbeat_seconds=1,
            container_runtime=self.site.container_runtime,
            spec=self.spec,
        )
        attempt.launch.write_text(document.model_dump_json(by_alias=True))
        attempt.token.write_text(f"token-a{number}")
        self.make_current(number)
        return attempt

    def make_current(self, number: int) -> None:
        """Name the attempt as the job's current one, as the service does before it submits the attempt."""
        current = CurrentAttempt(attempt_id=f"a{number}", attempt=number, execution=number * 10 - 9)
        self.layout.current.write_text(current.model_dump_json())

    def start(self, number: int = 1, faults: Faults = (), environ: Environ = None) -> AttemptLayout:
        attempt = self.prepare(number)
        if self.nodes == 1:
            self.process = launch(attempt, faults, environ)
            return attempt
        slurm = {"SLURM_JOB_ID": "7"} | (environ or {})
        self.process, *self.other_nodes = (
            launch(attempt, faults, slurm | {"SLURM_PROCID": str(node), "SLURMD_NODENAME": f"node{node}"})
            for node in range(self.nodes)
        )
        return attempt

    def run(self, number: int = 1, faults: Faults = (), seconds: float = 100, environ: Environ = None) -> AttemptLayout:
        attempt = self.start(number, faults, environ)
        self.wait(seconds)
        return attempt

    def wait(self, seconds: float = 100) -> None:
        assert self.process is not None
        launchers = [self.process, *self.other_nodes]
        try:
            assert [launcher.wait(seconds) for launcher in launchers] == [0] * len(launchers)
        finally:
            for launcher in launchers:
                launcher.kill()

    def manifest(self, step: int) -> str:
        return str(self.layout.checkpoint(step).manifest)


LAUNCHER = ("-m", "worker.launcher")
LAUNCHER_WITH_SHORT_WAITS = (
    "-c",
    "import sys; from worker.launcher import supervise; "
    "supervise._FINISH_SECONDS = supervise._LAST_LOGS_SECONDS = 0.5; supervise.run(sys.argv[1])",
)
"""The launcher with a shorter wait for an unavailable service at its end."""


def launch(
    attempt: AttemptLayout, faults: Faults = (), environ: Environ = None, program: Sequence[str] = LAUNCHER
) -> "subprocess.Popen[bytes]":
    env = {
        **os.environ,
        **(environ or {}),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE / "faults")]),
        "TRAINYARD_TEST_FAULTS": json.dumps(list(faults)),
        "OMP_NUM_THREADS": "1",
    }
    with (attempt.root / "outer.log").open("ab") as output:
        command = [sys.executable, *program, str(attempt.root)]
        return subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=attempt.root)


def finish_of(attempt: AttemptLayout, execution: int) -> FinishRecord:
    file = attempt.finish(execution)
    if not file.exists():
        names = sorted(path.name for path in attempt.root.iterdir())
        logs = [attempt.root / "outer.log", *sorted(attempt.logs.glob("*.log"))]
        texts = "".join(f"\n{log.name}:\n{log.read_text()[-4000:]}" for log in logs)
        raise AssertionError(f"{file.name} is not in {names}{texts}")
    return FinishRecord.model_validate_json(file.read_bytes())


def spooled(attempt: AttemptLayout, execution: int, key: str = "train/loss") -> dict[int, str]:
    """Return the values of one metric by step, as text, from rank 0's spool."""
    points = all_spooled_points(attempt, execution)
    return {step: value for (name, step, _), value in points.items() if name == key}


def all_spooled_points(attempt: AttemptLayout, execution: int) -> dict[tuple[str, int, int], str]:
    bodies = [record.body() for record in parse_spool(attempt.spool_file(execution))]
    batches = [body for body in bodies if isinstance(body, MetricsBatch)]
    return {(point.key, point.step, execution): repr(point.value) for batch in batches for point in batch.points}


def processes_of(attempt: AttemptLayout) -> list[int]:
    """Return the live processes that run in the attempt's folders, or whose command line names one of them."""
    pids, folders = [], [str(attempt.root), str(attempt.work)]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, current = (entry / "cmdline").read_bytes(), os.readlink(entry / "cwd")
            if any(folder.encode() in command or current.startswith(folder) for folder in folders):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


PRELOADED = [
    *("tests.integration.worker.layout_ranks", "torch.distributed.fsdp", "torch._dynamo", "transformers", "peft"),
    # Peft imports it, too, when it adds adapters.
    "torchao.float8",
]
"""What the ranks of `run_layout` import. Their fork server has imported it once."""


def examples_of_steps(results: Sequence[dict[str, Any]], case: str) -> dict[str, list[int]]:
    """Return the numbers of the examples of each step of a case, over all ranks in the order of their numbers."""
    steps = results[0][case]["examples"]
    return {step: sorted(index for rank in results for index in rank[case]["examples"].get(step, ())) for step in steps}


def series(result: list[Any], case: str, key: str = "train/loss") -> dict[int, float]:
    """Return the values of a metric by step, of a case that `run_layout` has run."""
    return {int(step): float(value) for step, value in result[0][case]["series"][key].items()}


def run_layout(
    world: int,
    cases: dict[str, Any],
    folder: Path,
    seconds: float = 150,
    environ: Environ = None,
    *,
    killed: bool = False,
) -> list[Any]:
    """Run the cases on `world` processes; return one result per rank. With `killed`, the last case kills the
    processes, so that there is no result.

    The processes are forks of one server, so that torch is imported once. Those with an environment of their own, such
    as on GPUs, are new interpreters.
    """
    ranks_module = importlib.import_module("tests.integration.worker.layout_ranks")
    folder.mkdir(parents=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    group = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    context = multiprocessing.get_context("spawn") if environ else multiprocessing.get_context("forkserver")
    if not environ:
        multiprocessing.set_forkserver_preload(PRELOADED)
    at_import = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        context.Process(target=ranks_module.main, args=(rank, at_import | group | (environ or {}), folder))
        for rank in range(world)
    ]
    try:
        with patch.dict(os.environ, at_import):
            for rank in ranks:
                rank.start()
        wait_for_all(ranks, time.monotonic() + seconds)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join(10)
    logs = "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in sorted(folder.glob("*.log")))
    assert [rank.exitcode for rank in ranks] == [-signal.SIGKILL if killed else 0] * world, logs
    return [] if killed else [ranks_module.read_results(folder, rank) for rank in range(world)]


__all__ = ["FakeService", "Run", "finish_of", "run_layout", "signal", "spooled", "wait_for"]


def wait_for_all(ranks: Sequence[BaseProcess], limit: float) -> None:
    """Wait until all processes have ended, one has failed, or the time limit has passed."""
    left = {rank.sentinel: rank for rank in ranks}
    while left and time.monotonic() < limit:
        for ended in multiprocessing.connection.wait(left, limit - time.monotonic()):
            rank = left.pop(ended)  # type: ignore[arg-type]
            # A process closes its sentinel before it has ended; with a context on a GPU that takes a while.
            rank.join(max(0.0, limit - time.monotonic()))
            if rank.exitcode != 0:
                return
