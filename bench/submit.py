"""`python -m bench.submit`: how quickly jobs are accepted and submitted, with a real Slurm.

First `POST /v1/jobs` at a fixed rate on SQLite and Postgres, from another process, while the service submits the
accepted jobs; alternating with a baseline: a server whose route only commits one row. The time that a request waits to
be sent counts. All nodes are occupied from the start, so that no job runs during the measurement.

Then, with programs in place of Slurm's commands: the time until many jobs that are accepted at once are all submitted,
alternating with the same number of plain sbatch.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import httpx
import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from service.db.engine import Database
from tests.support.postgres import running_server
from tests.support.slurm_lab import running_lab
from tests.support.slurm_programs import accepting_sbatch, install_programs, queue_file
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.spec.templates import fill_template
from trainyard.demo import ServiceProcess, free_port

ACCEPT_SECONDS = 0.060
BURST_JOBS, BURST_SECONDS = 300, 60.0
WAIT_SECONDS = 900.0
SBATCH_AT_ONCE = 4
"""As many calls as the service makes."""
THREADS = 32
SPEC = fill_template("mlp_parity", {"gpus": 2, "resources.partition": "gpu", "resources.gpus_per_node": 1})


def main() -> int:
    """Print the tables; return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["accept", "burst"], help="only one of the measurements")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of the requests")
    parser.add_argument("--burst", type=int, default=BURST_JOBS, help="jobs that are accepted at once")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    passed = options.only == "burst" or measure_with_slurm(options)
    if options.only != "accept":
        passed &= measure_burst(options.burst, options.rounds)
    return 0 if passed else 1


def measure_with_slurm(options: argparse.Namespace) -> bool:
    """Measure the requests on both databases; return whether the target is met."""
    passed = True
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as root, running_lab() as lab, patch.dict(os.environ):
        os.environ.update(lab.environment)
        lab.run("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 3600")
        with running_server() as server:
            for name, new_database in (("SQLite", lambda: ""), ("Postgres", server.create_database)):
                passed &= measure_accepting(Path(root) / name, name, new_database, options)
        lab.cancel_all()
    return passed


@contextmanager
def service(folder: Path, **settings: str) -> Iterator[Client]:
    """Run a service on the test cluster and yield its client."""
    process = ServiceProcess(folder, backend="slurm", accelerator="cpu", **settings)
    process.start()
    try:
        with process.client() as client:
            yield client
    finally:
        process.stop()


def measure_accepting(folder: Path, name: str, new_database: Callable[[], str], options: argparse.Namespace) -> bool:
    """Send requests at a fixed rate, alternating with the baseline. Return whether they meet the target."""
    folder.mkdir()
    rate, count = options.rate, int(options.rate * options.seconds)
    print(f"\nPOST on {name}, {rate:g} a second, {count} requests, medians of {options.rounds} alternating rounds, ms")
    print(f"{'':18}{'p50':>8}{'p95':>8}{'p99':>8}{'max':>8}")
    latencies: dict[str, list[list[float]]] = {"/v1/jobs": [], "baseline": []}
    for number in range(options.rounds):
        own, url = folder / str(number), new_database()
        with service(own, **({"database_url": url} if url else {})) as client:
            token = (own / "state" / "admin_token").read_text().strip()
            latencies["/v1/jobs"].append(request_latencies(f"{client.url}/v1/jobs", token, rate, count))
        with baseline_server(url or f"sqlite:///{own / 'baseline_server.sqlite'}") as address:
            latencies["baseline"].append(request_latencies(f"{address}/floor", "", rate, count))
    for name, rounds in latencies.items():
        row = [median(quantile(values, share) for values in rounds) for share in (0.5, 0.95, 0.99, 1.0)]
        print(f"{name:18}" + "".join(f"{1000 * value:8.1f}" for value in row))
    return report_target("p99", median(quantile(values, 0.99) for values in latencies["/v1/jobs"]), ACCEPT_SECONDS)


def request_latencies(url: str, token: str, rate: float, count: int) -> list[float]:
    """Send requests from another process; return the latency of each in seconds."""
    command = [sys.executable, "-m", "bench.submit", "--load", url, token, str(rate), str(count)]
    done = subprocess.run(command, input=json.dumps(SPEC).encode(), check=True, stdout=subprocess.PIPE, timeout=600)
    values: list[float] = json.loads(done.stdout)
    return values


@contextmanager
def baseline_server(url: str) -> Iterator[str]:
    """Run the baseline in a process of its own and yield its address."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.submit", "--baseline-server", url, str(port)])
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: responds(address), 30, "the baseline server to serve")
        yield address
    finally:
        process.terminate()
        process.wait()


def responds(address: str) -> bool:
    try:
        return httpx.get(f"{address}/openapi.json", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def make_app(database: Database) -> FastAPI:
    """Return an app whose only route stores the request body as a row."""
    app = FastAPI()
    statement = sa.text("INSERT INTO floor (body) VALUES (:body)")
    with database.write() as session:
        session.execute(sa.text("CREATE TABLE IF NOT EXISTS floor (body TEXT)"))

    def insert(body: str) -> None:
        with database.write() as session:
            session.execute(statement, {"body": body})

    @app.post("/floor", status_code=201)
    async def insert_row(request: Request) -> Any:
        body = (await request.body()).decode()
        await run_in_threadpool(insert, body)
        return {"stored": len(body)}

    return app


class Caller:
    """Sends a request on the connection of the calling thread."""

    def __init__(self, url: str, token: str, body: bytes) -> None:
        self._url = urlsplit(url)
        self._body = body
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._local = threading.local()

    def __call__(self, due: float) -> float:
        """Send one request and return the seconds from `due` to the end of the response.

        Raises:
            RuntimeError: the status is not 201.
        """
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=60)
        connection = self._local.connection
        connection.request("POST", self._url.path, self._body, self._headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 201:
            raise RuntimeError(f"{response.status}: {text[:500]!r}")
        return time.monotonic() - due


def send_at_rate(call: Caller, count: int, rate: float) -> list[float]:
    """Send `count` requests, `rate` a second; the latencies include the time that a request waits for a thread."""
    with ThreadPoolExecutor(THREADS) as pool:
        started = time.monotonic()
        futures = []
        for number in range(count):
            due = started + number / rate
            time.sleep(max(0.0, due - time.monotonic()))
            futures.append(pool.submit(call, due))
        return [future.result() for future in futures]


def measure_burst(jobs: int, count: int) -> bool:
    """Submit many jobs, alternating with plain sbatch; return whether Trainyard meets its target."""
    print(f"\nsubmission of {jobs} jobs, medians of {count} alternating rounds, seconds")
    rounds = [{"plain sbatch": plain_sbatch_seconds(jobs), **burst_seconds(jobs)} for _ in range(count)]
    medians = {name: median(row[name] for row in rounds) for name in rounds[0]}
    for name, seconds in medians.items():
        values = [row[name] for row in rounds]
        print(f"{name:18}{seconds:8.1f}  ({min(values):.1f} to {max(values):.1f})")
    return report_target(f"{jobs} jobs", medians["submitted"], BURST_SECONDS * jobs / BURST_JOBS)


def burst_seconds(jobs: int) -> dict[str, float]:
    """The seconds from the first request until each stage is complete, with programs in place of Slurm's commands."""
    with slurm_programs() as (folder, bin_folder), service(folder) as client:
        # The first job waits for the first cluster snapshot.
        client.submit(SPEC)
        wait_until(lambda: submitted_jobs(bin_folder) == 1, 60, "the first submission")
        started = time.monotonic()
        for _ in range(jobs):
            client.submit(SPEC)
        accepted = time.monotonic() - started
        wait_until(lambda: submitted_jobs(bin_folder) == jobs + 1, WAIT_SECONDS, "all submissions")
        return {"accepted": accepted, "submitted": time.monotonic() - started}


def plain_sbatch_seconds(count: int) -> float:
    """The seconds of plain calls of the same sbatch, as many at once as the service makes."""
    with slurm_programs() as (folder, _):
        file = folder / "batch.sh"
        file.write_text("#!/bin/sh\n#SBATCH --job-name=plain\ntrue\n")
        started = time.monotonic()
        with ThreadPoolExecutor(SBATCH_AT_ONCE) as pool:
            list(
                pool.map(lambda _: subprocess.run(["sbatch", str(file)], check=True, capture_output=True), range(count))
            )
        return time.monotonic() - started


@contextmanager
def slurm_programs() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as root, patch.dict(os.environ):
        programs = Path(root) / "bin"
        install_programs(programs, [], nodes=4, sbatch=accepting_sbatch(programs))
        yield Path(root), programs


def submitted_jobs(programs: Path) -> int:
    return len(queue_file(programs).read_text().splitlines())


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def report_target(name: str, seconds: float, allowed: float) -> bool:
    passed = seconds <= allowed
    print(f"{name}: {seconds:.3f} s; allowed: {allowed:g} s{'' if passed else '  MISSED'}")
    return passed


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--baseline-server", url, port]:
            uvicorn.run(make_app(Database(url)), host="127.0.0.1", port=int(port), log_level="warning")
        case ["--load", url, token, rate, count]:
            caller = Caller(url, token, sys.stdin.buffer.read())
            send_at_rate(caller, 10, 10.0)
            json.dump(send_at_rate(caller, int(count), float(rate)), sys.stdout)
        case _:
            sys.exit(main())
