"""`python -m bench.submit`: the latency of submissions and the cost of accepting jobs, with a real Slurm.

First, on an idle service: the time from the 201 to the start of sbatch, one job at a time, alternating with submitit's
`submit` (from its call to the start of sbatch) and with bare sbatch. Then `POST /v1/jobs` at a fixed rate on SQLite and
Postgres, from another process, while the service submits the accepted jobs; alternating with a baseline: a server whose
route only commits one row. The time that a request waits to be sent counts. All nodes are occupied from the start, so
that no job runs during the measurement.

Last, with programs in place of Slurm's commands: the time until many jobs that are accepted at once are all submitted,
alternating with the same number of plain sbatch.
"""

import argparse
import json
import os
import shutil
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

from bench._burst import burst_seconds, plain_sbatch_seconds
from tests.support.postgres import running_server
from tests.support.slurm_lab import SlurmLab, running_lab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.spec.templates import fill_template
from trainyard.demo import ServiceProcess, free_port

SUBMISSION_SECONDS = 1.0
ACCEPT_SECONDS = 0.060
BURST_JOBS, BURST_SECONDS = 300, 60.0
ROUNDS = 3
SPEC = fill_template("mlp_parity", {"gpus": 2, "resources.partition": "gpu", "resources.gpus_per_node": 1})


def main() -> int:
    """Print the tables; return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["submit", "accept", "burst"], help="only one of the measurements")
    parser.add_argument("--jobs", type=int, default=20, help="submissions one at a time")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the requests")
    parser.add_argument("--burst", type=int, default=BURST_JOBS, help="jobs that are accepted at once")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    passed = options.only == "burst" or measure_with_slurm(options)
    if options.only in (None, "burst"):
        passed &= measure_burst(options.burst)
    return 0 if passed else 1


def measure_with_slurm(options: argparse.Namespace) -> bool:
    """Measure what needs a cluster; return whether the targets are met."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as root, running_lab() as lab:
        folder = Path(root)
        call_log = log_sbatch_calls(folder / "bin", lab)
        lab.run("sbatch", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 3600")
        passed = options.only == "accept" or measure_submission(folder, call_log, options.jobs)
        if options.only != "submit":
            with running_server() as server:
                for name, new_database in (("SQLite", lambda: ""), ("Postgres", server.create_database)):
                    passed &= measure_accepting(folder / name, name, new_database, options.rate, options.seconds)
        lab.cancel_all()
    return passed


def measure_burst(jobs: int) -> bool:
    """Submit many jobs, alternating with plain sbatch; return whether Trainyard meets its target."""
    print(f"\nsubmission of {jobs} jobs, medians of {ROUNDS} alternating rounds, seconds")
    rounds = [{"plain sbatch": plain_sbatch_seconds(jobs), **burst_seconds(jobs, SPEC)} for _ in range(ROUNDS)]
    medians = {name: median(row[name] for row in rounds) for name in rounds[0]}
    for name, seconds in medians.items():
        values = [row[name] for row in rounds]
        print(f"{name:18}{seconds:8.1f}  ({min(values):.1f} to {max(values):.1f})")
    return report_target(f"{jobs} jobs", medians["submitted"], BURST_SECONDS * jobs / BURST_JOBS)


def log_sbatch_calls(folder: Path, lab: SlurmLab) -> Path:
    """Put a program before `sbatch` on PATH that logs the time of each call; return the log file."""
    folder.mkdir()
    call_log, program = folder / "call_log", shutil.which("sbatch")
    call_log.touch()
    (folder / "sbatch").write_text(f'#!/bin/sh\ndate +%s.%N >> {call_log}\nexec {program} "$@"\n')
    (folder / "sbatch").chmod(0o755)
    os.environ.update(lab.environment | {"PATH": f"{folder}{os.pathsep}{lab.environment['PATH']}"})
    return call_log


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


def measure_submission(folder: Path, call_log: Path, jobs: int) -> bool:
    """Measure the methods alternately, one submission at a time; return whether Trainyard meets its target."""
    executor = submitit.SlurmExecutor(folder / "submitit")
    executor.update_parameters(partition="gpu")
    with service(folder / "idle") as client:
        methods: dict[str, Callable[[], float]] = {
            "201 to sbatch": lambda: until_sbatch(call_log, lambda: client.submit(SPEC), from_return=True),
            "submitit submit": lambda: until_sbatch(call_log, lambda: executor.submit(print, 1), from_return=False),
            "bare sbatch": time_of_sbatch,
        }
        seconds: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(jobs):
            for name, method in methods.items():
                seconds[name].append(method())
    print(f"\nsubmission, {jobs} one at a time, seconds")
    print(f"{'':18}{'p50':>8}{'p95':>8}{'max':>8}")
    for name, values in seconds.items():
        print(f"{name:18}{median(values):8.3f}{quantile(values, 0.95):8.3f}{max(values):8.3f}")
    return report_target("p95 of 201 to sbatch", quantile(seconds["201 to sbatch"], 0.95), SUBMISSION_SECONDS)


def until_sbatch(call_log: Path, submit: Callable[[], object], *, from_return: bool) -> float:
    """Return the seconds from the call of `submit` (or from its return) until sbatch starts; at least 0."""
    before = len(call_log.read_text().split())
    started = time.time()
    submit()
    started = time.time() if from_return else started
    deadline = time.monotonic() + 60
    while len(stamps := call_log.read_text().split()) == before:
        if time.monotonic() > deadline:
            raise TimeoutError("sbatch was not called within 60 s")
        time.sleep(0.002)
    time.sleep(0.2)  # Let the work after the call end before the next submission.
    return max(0.0, float(stamps[before]) - started)


def time_of_sbatch() -> float:
    """Return the seconds that one call of sbatch takes."""
    started = time.monotonic()
    command = ["sbatch", "-p", "gpu", "--output=/dev/null", "--wrap", "true"]
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - started


def measure_accepting(folder: Path, name: str, new_database: Callable[[], str], rate: float, seconds: float) -> bool:
    """Send requests at a fixed rate, alternating with the baseline. Return whether they meet the target."""
    folder.mkdir()
    count = int(rate * seconds)
    print(f"\nPOST on {name}, {rate:g} a second, {count} requests, medians of {ROUNDS} alternating rounds, ms")
    print(f"{'':18}{'p50':>8}{'p95':>8}{'p99':>8}{'max':>8}")
    latencies: dict[str, list[list[float]]] = {"/v1/jobs": [], "baseline_server": []}
    for number in range(ROUNDS):
        own, url = folder / str(number), new_database()
        with service(own, **({"database_url": url} if url else {})) as client:
            token = (own / "state" / "admin_token").read_text().strip()
            latencies["/v1/jobs"].append(request_latencies(f"{client.url}/v1/jobs", token, rate, count))
        with baseline_server(url or f"sqlite:///{own / 'baseline_server.sqlite'}") as address:
            latencies["baseline_server"].append(request_latencies(f"{address}/baseline_server", "", rate, count))
    for name, rounds in latencies.items():
        row = [median(quantile(values, share) for values in rounds) for share in (0.5, 0.95, 0.99, 1.0)]
        print(f"{name:18}" + "".join(f"{1000 * value:8.1f}" for value in row))
    return report_target("p99", median(quantile(values, 0.99) for values in latencies["/v1/jobs"]), ACCEPT_SECONDS)


def request_latencies(url: str, token: str, rate: float, count: int) -> list[float]:
    """Send requests from another process; return the latency of each in seconds."""
    command = [sys.executable, "-m", "bench._load_generator", url, token, str(rate), str(count)]
    done = subprocess.run(command, input=json.dumps(SPEC).encode(), check=True, stdout=subprocess.PIPE, timeout=600)
    values: list[float] = json.loads(done.stdout)
    return values


@contextmanager
def baseline_server(url: str) -> Iterator[str]:
    """Run the server of `bench._baseline_server` and yield its address."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench._baseline_server", url, str(port)])
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


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def report_target(name: str, seconds: float, allowed: float) -> bool:
    passed = seconds <= allowed
    print(f"{name}: {seconds:.3f} s; allowed: {allowed:g} s{'' if passed else '  MISSED'}")
    return passed


if __name__ == "__main__":
    sys.exit(main())
