"""`python -m bench.ingest`: points stored per second on SQLite and Postgres, compared with MLflow.

Eight writer processes send batches of 1000 and of 10 points; every tenth batch is sent twice, as by a worker that lost
the response. In turn, they write over HTTP to Trainyard, which downsamples at the same time, and to MLflow's tracking
server on the same kind of database. Each commit is flushed to disk (SQLite: synchronous=FULL for Trainyard, MLflow's
own setting for MLflow). Points that were sent twice count once.

Each rate is printed with the CPU time of writers, service and Postgres. On a shared machine CPU time is more reliable
than the clock: eight writers with a connection each get a larger share than one service.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench._seed_jobs import seed_jobs
from service.db.engine import Database
from service.db.migrate import upgrade
from tests.support.postgres import PostgresServer, running_server
from trainyard.demo import ServiceProcess, free_port

WRITERS = 8
KEYS = 10
DUPLICATE_EVERY = 10
Point = tuple[str, int, float]
Send = Callable[[list[Point]], None]
MIN_RATIO = {1000: 10.0, 10: 5.0}
"""Target by batch size: points per second relative to MLflow."""


@dataclass(frozen=True)
class Rate:
    """The throughput of eight writers."""

    points: float
    """Points stored per second."""
    p50: float
    p99: float
    """99th percentile of a request, in milliseconds; `p50` is the median."""
    writers: float
    """CPU time of the writers in microseconds per point."""
    database: float = 0.0
    """CPU time of Postgres in microseconds per point."""
    service: float = 0.0

    @property
    def cpu(self) -> float:
        """Total CPU time in microseconds per point."""
        return self.writers + self.database + self.service

    def __str__(self) -> str:
        parts = f"writers {self.writers:.1f}, Postgres {self.database:.1f}, service {self.service:.1f}"
        rate = f"{self.points:10,.0f} points/s   p50 {self.p50:7.1f} ms   p99 {self.p99:7.1f} ms"
        return f"{rate}   CPU {self.cpu:6.1f} us per point ({parts})"


def main() -> int:
    """Print the table and return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each measurement")
    parser.add_argument(
        "--mlflow", default=str(Path(sys.executable).with_name("mlflow")), help="path of the mlflow program"
    )
    parser.add_argument("--mlflow-workers", type=int, default=4, help="MLflow's own default")
    parser.add_argument("--databases", nargs="*", default=["sqlite", "postgres"])
    parser.add_argument("--sizes", nargs="*", type=int, default=[1000, 10])
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}; {WRITERS} writers")
    good = True
    with running_server(durable=True) as server:
        for database in options.databases:
            for size in options.sizes:
                with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
                    good &= _compare(Path(folder), database, size, server, options)
    return 0 if good else 1


def _compare(folder: Path, database: str, size: int, server: PostgresServer, options: Any) -> bool:
    print(f"\n{database}, batches of {size}")
    trainyard = _measure_trainyard(
        folder / "trainyard", _url(database, folder / "trainyard.sqlite", server), size, options.seconds, server
    )
    print(f"  trainyard        {trainyard}")
    if Path(options.mlflow).exists():
        mlflow = _measure_mlflow(
            folder / "mlflow", _url(database, folder / "mlflow.sqlite", server), size, options, server
        )
        print(f"  mlflow           {mlflow}")
        wall_ratio, cpu_ratio = trainyard.points / mlflow.points, mlflow.cpu / trainyard.cpu
        print(f"                   trainyard / mlflow: {wall_ratio:.1f} by the clock, {cpu_ratio:.1f} by CPU time")
        return trainyard.points >= MIN_RATIO.get(size, 0.0) * mlflow.points
    print(f"  mlflow           not measured: {options.mlflow} does not exist")
    return True


def _url(database: str, path: Path, server: PostgresServer) -> str:
    return f"sqlite:///{path}" if database == "sqlite" else server.create_database()


def _measure_trainyard(folder: Path, url: str, size: int, seconds: float, server: PostgresServer) -> Rate:
    folder.mkdir()
    upgrade(url)
    database = Database(url)
    jobs = seed_jobs(database, WRITERS)
    service = ServiceProcess(folder, database_url=url)
    service.start()
    try:
        service.client().close()
        base = {"kind": "trainyard", "host": "127.0.0.1", "port": service.port}
        plans = [{**base, "path": job.metrics_path, "token": job.token} for job in jobs]
        return _measure(plans, size, seconds, server)
    finally:
        service.stop()
        database.dispose()


def _measure_mlflow(folder: Path, url: str, size: int, options: Any, server: PostgresServer) -> Rate:
    folder.mkdir()
    with _mlflow_server(folder, url, options) as port:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/2.0/mlflow", timeout=120) as client:
            runs = [_post(client, "/runs/create", {"experiment_id": "0", "start_time": 0}) for _ in range(WRITERS)]
        base = {"kind": "mlflow", "host": "127.0.0.1", "port": port, "path": "/api/2.0/mlflow/runs/log-batch"}
        plans = [{**base, "run": run["run"]["info"]["run_id"]} for run in runs]
        return _measure(plans, size, options.seconds, server)


@contextmanager
def _mlflow_server(folder: Path, url: str, options: Any) -> Iterator[int]:
    port = free_port()
    command = [options.mlflow, "server", "--backend-store-uri", url, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", str(options.mlflow_workers), "--default-artifact-root", str(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
    try:
        _wait_until_ready(
            lambda: httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).is_success, process, folder / "log"
        )
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    for _ in range(10):
        with suppress(httpx.TransportError):
            return client.post(path, json=body).raise_for_status().json()
        time.sleep(1)
    raise SystemExit("MLflow does not respond")


def _wait_until_ready(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"MLflow ended: {log.read_text(errors='replace')[-500:]}")
        try:
            if ready():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("MLflow did not start")


def _measure(plans: Sequence[dict[str, Any]], size: int, seconds: float, server: PostgresServer) -> Rate:
    service_started, database_started = children_cpu_seconds(), server_cpu_seconds(server.pid)
    start = time.time() + 1.5
    writers = []
    for plan in plans:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.ingest", "--write"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({**plan, "size": size, "seconds": seconds, "start": start}).encode())
        process.stdin.close()
        writers.append(process)
    points, count, writer_cpu, times = 0.0, 0, 0.0, []
    for process in writers:
        assert process.stdout is not None
        result = json.loads(process.stdout.read() or b"{}")
        process.wait()
        if not result:
            raise SystemExit("a writer failed")
        points += result["points"] / result["seconds"]
        count += result["points"]
        writer_cpu += result["cpu"]
        times += result["times"]
    times.sort()
    # The writers have ended, so the only child left is the service.
    cpu = (writer_cpu, server_cpu_seconds(server.pid) - database_started, children_cpu_seconds() - service_started)
    cpu_per_point = [seconds / count * 1e6 for seconds in cpu]
    return Rate(points, times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000, *cpu_per_point)


def children_cpu_seconds() -> float:
    """Return the CPU seconds of this process's running descendants."""
    return sum(_cpu_seconds(process) for process in psutil.Process().children(recursive=True))


def server_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and all its children, running and ended."""
    server = psutil.Process(pid)
    ended = server.cpu_times()
    running = sum(map(_cpu_seconds, server.children()))
    return _cpu_seconds(server) + ended.children_user + ended.children_system + running


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def write() -> None:
    """Run one writer, whose plan is read from standard input; print the points stored, the latency of each request and
    CPU seconds."""
    plan = json.load(sys.stdin)
    send = (_send_to_trainyard if plan["kind"] == "trainyard" else _send_to_mlflow)(plan)
    time.sleep(max(0.0, plan["start"] - time.time()))
    started, seconds, points, times = time.perf_counter(), plan["seconds"], 0, []
    cpu_started = time.process_time()
    for number, batch in enumerate(_batches(plan["size"])):
        for _ in range(2 if number % DUPLICATE_EVERY == 0 else 1):
            sent_at = time.perf_counter()
            send(batch)
            times.append(time.perf_counter() - sent_at)
        points += len(batch)
        if time.perf_counter() - started > seconds:
            break
    result = {"points": points, "seconds": time.perf_counter() - started, "times": times}
    print(json.dumps({**result, "cpu": time.process_time() - cpu_started}))


def _batches(size: int) -> Iterator[list[Point]]:
    step = 0
    while True:
        batch: list[Point] = []
        while len(batch) < size:
            step += 1
            batch += [(f"train/metric_{key}", step, random.random()) for key in range(KEYS)]
        yield batch


def _timestamp(step: int) -> str:
    """Return the timestamp of a step; steps are one second apart."""
    return f"2026-01-{1 + step // 86400 % 28:02}T{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}.000Z"


class _Connection:
    """A persistent HTTP connection; `http.client` would need more CPU time than the writers can have."""

    def __init__(self, plan: dict[str, Any], headers: dict[str, str]):
        self._address = (plan["host"], plan["port"])
        lines = [f"POST {plan['path']} HTTP/1.1", f"Host: {plan['host']}:{plan['port']}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join(lines).encode() + b"\r\nContent-Length: %d\r\n\r\n"
        self._socket: socket.socket | None = None

    def post(self, body: bytes) -> tuple[int, float]:
        """Send one request and return the status and the seconds of `Retry-After`.

        Raises:
            OSError: the server closed the connection; the next call opens a new one.
        """
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=120)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(self._head % len(body) + body)
            return self._read_response(self._socket)
        except OSError:
            self._socket.close()
            self._socket = None
            raise

    def _read_response(self, connection: socket.socket) -> tuple[int, float]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive(connection)
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        remaining = int(headers["content-length"]) - len(rest)
        while remaining > 0:
            remaining -= len(self._receive(connection))
        if headers.get("connection") == "close":
            connection.close()
            self._socket = None
        return int(first.split(" ", 2)[1]), float(headers.get("retry-after", "1"))

    @staticmethod
    def _receive(connection: socket.socket) -> bytes:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError("closed")
        return data


def _make_post(plan: dict[str, Any], headers: dict[str, str]) -> Callable[[bytes], None]:
    connection = _Connection(plan, headers)

    def post(body: bytes) -> None:
        while True:
            try:
                status, seconds = connection.post(body)
            except OSError:
                time.sleep(0.05)  # The server process that had the connection ended.
                continue
            if status == 200:
                return
            if status not in (429, 503):
                raise SystemExit(f"{plan['kind']} answered {status}")
            time.sleep(seconds)

    return post


def _send_to_trainyard(plan: dict[str, Any]) -> Send:
    post = _make_post(plan, {"Authorization": f"Bearer {plan['token']}", "Content-Type": "application/json"})

    def send(batch: list[Point]) -> None:
        times = {s: _timestamp(s) for _, s, _ in batch[::KEYS]}
        points = ",".join(f'{{"key":"{k}","step":{s},"value":{v!r},"time":"{times[s]}"}}' for k, s, v in batch)
        source = f'{{"spool":0,"records":[{",".join(f"[{step},{KEYS}]" for step in times)}]}}'
        post(f'{{"execution":1,"resumed_from_step":0,"points":[{points}],"progress":null,"source":{source}}}'.encode())

    return send


def _send_to_mlflow(plan: dict[str, Any]) -> Send:
    post = _make_post(plan, {"Content-Type": "application/json"})

    def send(batch: list[Point]) -> None:
        points = ",".join(
            f'{{"key":"{k}","value":{v!r},"timestamp":{1767225600000 + 1000 * s},"step":{s}}}' for k, s, v in batch
        )
        post(f'{{"run_id":"{plan["run"]}","metrics":[{points}]}}'.encode())

    return send


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        sys.exit(main())
