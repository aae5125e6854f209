"""`python -m bench.submit`: the latency of submissions and the cost of accepting jobs, with a real Slurm.

First, on an idle service: the time from the 201 to the start of sbatch, one job at a time, alternating with submitit's
`submit` (from its call to the start of sbatch) and with bare sbatch. Then `POST /v1/jobs` at a fixed rate on SQLite and
Postgres, from another process, while the service submits the accepted jobs; alternating with a baseline: a server whose
route only commits one row. The time that a request waits to be sent counts. All nodes are occupied from the start, so
that no job runs during the measurement.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import submitit

from tests.support.postgres import running_server
from tests.support.slurm_lab import SlurmLab, running_lab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.spec.templates import fill_template
from trainyard.demo import ServiceProcess

HAND_OVER_SECONDS = 1.0
ACCEPT_SECONDS = 0.060
ROUNDS = 3
SPEC = fill_template("mlp_parity", {"gpus": 2, "resources.partition": "gpu", "resources.gpus_per_node": 1})


def main() -> int:
    """Print the tables; 0 where the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["hand-over", "accept"], help="one of the two parts")
    parser.add_argument("--jobs", type=int, default=20, help="submissions one at a time")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of requests at that rate")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load average before: {load:.1f}")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as made, running_lab() as lab:
        folder = Path(made)
        calls = stamped_sbatch(folder / "bin", lab)
        lab.run("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 3600")
        good = options.only == "accept" or hand_overs(folder, calls, options.jobs)
        if options.only != "hand-over":
            with running_server() as server:
                for name, new in (("SQLite", lambda: ""), ("Postgres", server.create_database)):
                    good &= accepting(folder / name, name, new, options.rate, options.seconds)
        lab.cancel_all()
    return 0 if good else 1


def stamped_sbatch(folder: Path, lab: SlurmLab) -> Path:
    """Put before sbatch, for everything below this process, a program that notes the time; the file of times."""
    folder.mkdir()
    calls, program = folder / "calls", shutil.which("sbatch")
    calls.touch()
    (folder / "sbatch").write_text(f'#!/bin/sh\ndate +%s.%N >> {calls}\nexec {program} "$@"\n')
    (folder / "sbatch").chmod(0o755)
    os.environ.update(lab.environment | {"PATH": f"{folder}{os.pathsep}{lab.environment['PATH']}"})
    return calls


@contextmanager
def service(folder: Path, **settings: str) -> Iterator[Client]:
    """A service on the lab, with its default pace."""
    process = ServiceProcess(folder, backend="slurm", accelerator="cpu", **settings)
    process.start()
    try:
        with process.client() as client:
            yield client
    finally:
        process.stop()


def hand_overs(folder: Path, calls: Path, jobs: int) -> bool:
    """One at a time, in turns; returns whether ours meets its target."""
    executor = submitit.SlurmExecutor(folder / "submitit")
    executor.update_parameters(partition="gpu")
    with service(folder / "idle") as client:
        ways: dict[str, Callable[[], float]] = {
            "201 to sbatch": lambda: until_sbatch(calls, lambda: client.submit(SPEC), from_return=True),
            "submitit submit": lambda: until_sbatch(calls, lambda: executor.submit(print, 1), from_return=False),
            "bare sbatch": bare_sbatch,
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(jobs):
            for name, way in ways.items():
                seconds[name].append(way())
    print(f"\nhanding over, {jobs} one at a time, seconds")
    print(f"{'':18}{'p50':>8}{'p95':>8}{'most':>8}")
    for name, values in seconds.items():
        print(f"{name:18}{median(values):8.3f}{quantile(values, 0.95):8.3f}{max(values):8.3f}")
    return verdict("p95 of 201 to sbatch", quantile(seconds["201 to sbatch"], 0.95), HAND_OVER_SECONDS)


def until_sbatch(calls: Path, submit: Callable[[], object], *, from_return: bool) -> float:
    """Seconds from the submission (its beginning, or its answer) until sbatch begins; never less than nothing."""
    before = len(calls.read_text().split())
    began = time.time()
    submit()
    began = time.time() if from_return else began
    deadline = time.monotonic() + 60
    while len(stamps := calls.read_text().split()) == before:
        if time.monotonic() > deadline:
            raise TimeoutError("sbatch was not called within 60 s")
        time.sleep(0.002)
    time.sleep(0.2)  # what follows the call is no part of the next one
    return max(0.0, float(stamps[before]) - began)


def bare_sbatch() -> float:
    """The command from its start to its end."""
    began = time.monotonic()
    command = ["sbatch", "-p", "gpu", "--output=/dev/null", "--wrap", "true"]
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - began


def accepting(folder: Path, name: str, new_database: Callable[[], str], rate: float, seconds: float) -> bool:
    """Send requests at a fixed rate, alternating with the baseline. Return whether they meet the target."""
    folder.mkdir()
    count = int(rate * seconds)
    print(f"\nPOST on {name}, {rate:g} a second, {count} requests, {ROUNDS} rounds in turns, medians, ms")
    print(f"{'':18}{'p50':>8}{'p95':>8}{'p99':>8}{'most':>8}")
    took: dict[str, list[list[float]]] = {"/v1/jobs": [], "floor": []}
    for number in range(ROUNDS):
        own, url = folder / str(number), new_database()
        with service(own, **({"database_url": url} if url else {})) as client:
            token = (own / "state" / "admin_token").read_text().strip()
            took["/v1/jobs"].append(load(f"{client.url}/v1/jobs", token, rate, count))
        with floor(url or f"sqlite:///{own / 'floor.sqlite'}") as address:
            took["floor"].append(load(f"{address}/floor", "", rate, count))
    for what, rounds in took.items():
        row = [median(quantile(values, share) for values in rounds) for share in (0.5, 0.95, 0.99, 1.0)]
        print(f"{what:18}" + "".join(f"{1000 * value:8.1f}" for value in row))
    return verdict("p99", median(quantile(values, 0.99) for values in took["/v1/jobs"]), ACCEPT_SECONDS)


def load(url: str, token: str, rate: float, count: int) -> list[float]:
    """Seconds to each answer, as a process of its own sees them."""
    command = [sys.executable, "-m", "bench._load", url, token, str(rate), str(count)]
    done = subprocess.run(command, input=json.dumps(SPEC).encode(), check=True, stdout=subprocess.PIPE, timeout=600)
    values: list[float] = json.loads(done.stdout)
    return values


@contextmanager
def floor(url: str) -> Iterator[str]:
    """A server that does nothing but commit; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "bench._floor", url, str(port)])
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(address), 30, "the floor to serve")
        yield address
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/openapi.json", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def quantile(values: list[float], share: float) -> float:
    """The smallest value that is not exceeded by that share of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def verdict(what: str, seconds: float, allowed: float) -> bool:
    good = seconds <= allowed
    print(f"{what}: {seconds:.3f} s, {'within' if good else 'MORE THAN'} the allowed {allowed:g} s")
    return good


if __name__ == "__main__":
    sys.exit(main())
