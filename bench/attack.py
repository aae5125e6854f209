"""`python -m bench.attack`: how quickly the service answers `/livez` while it is attacked.

One client opens a connection for each request to `/livez` and measures the time to its response. It does so for a few
seconds on a quiet service, and then beside each attack, in the same run; the last column compares the medians. Each
attack has many connections in a process of its own, and sends its next request as soon as it has the response.
"""

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess

MAX_SECONDS = 1.0
"""Target: the slowest response of `/livez` beside any attack."""
DEFAULT_CLIENTS = 64
IDLE_CONNECTIONS = 4500
INCOMPLETE_REQUESTS = 800

_GPT: dict[str, Any] = {
    "task": "causal_lm",
    "model": {"source": "builtin", "name": "gpt", "layers": 512, "width": 128},
    "data": {"source": "builtin", "name": "stdlib"},
    "steps": 5,
    "lora_rank": 4,
    "lora": {"targets": ["*"] * 64},
}
_JSON = {"Content-Type": "application/json"}

T = TypeVar("T")
Attack = Callable[[httpx.Client, int], httpx.Response]
"""Sends one request; the number distinguishes requests."""


def new_token(url: str, token: str, name: str) -> dict[str, str]:
    """Create a user's token, and return the header with it. Each attack has its own rate limit."""
    admin = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(f"{url}/v1/tokens", json={"name": name}, headers=admin)
    return {"Authorization": f"Bearer {answer.raise_for_status().json()['token']}"}


def attacks(url: str, token: str) -> dict[str, Attack]:
    """Return the attacks by name."""
    yaml_user, json_user, fields_user, plan_user, sweep_user, list_user = (
        new_token(url, token, name) for name in ("yaml", "json", "fields", "plan", "sweep", "list")
    )
    cookie = 'trainyard="' + "\\a" * 31_000 + '"'
    yaml = b"a: [" + b"[]," * 87_000 + b"]"
    unknown = json.dumps({f"optimizr{number}": 1 for number in range(12_000)}).encode()
    plan = json.dumps(_GPT).encode()
    # Refused after all members were checked, so that no job starts.
    fork = {**_GPT, "resume_from": "job_" + "0" * 26}
    sweep = json.dumps({"spec": fork, "grid": {"model.layers": list(range(300, 500))}}).encode()
    deep = b"[" * 260_000
    return {
        "cookie of 62 kB, no token": lambda http, _: http.get("/v1/jobs", headers={"Cookie": cookie}),
        "new wrong token each": lambda http, number: http.get(
            "/v1/jobs", headers={"Authorization": f"Bearer ty_{number:012x}_{'x' * 43}"}
        ),
        "metrics page, no token": lambda http, _: http.get("/metrics"),
        "OpenAPI document, no token": lambda http, _: http.get("/openapi.json"),
        "list of 200 jobs": lambda http, _: http.get("/v1/jobs?limit=200", headers=list_user),
        "YAML of 256 kB": lambda http, _: http.post(
            "/v1/plans", content=yaml, headers={**yaml_user, "Content-Type": "application/yaml"}
        ),
        "nested JSON of 256 kB": lambda http, _: http.post("/v1/plans", content=deep, headers={**json_user, **_JSON}),
        "12,000 unknown fields": lambda http, _: http.post(
            "/v1/plans", content=unknown, headers={**fields_user, **_JSON}
        ),
        "plan of 512 layers, 64 targets": lambda http, _: http.post(
            "/v1/plans", content=plan, headers={**plan_user, **_JSON}
        ),
        "sweep over 200 large models": lambda http, _: http.post(
            "/v1/sweeps", content=sweep, headers={**sweep_user, **_JSON}
        ),
    }


def main() -> int:
    """Print the table; return 0 if the target is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of each attack")
    parser.add_argument("--clients", type=int, default=DEFAULT_CLIENTS, help="connections of each attack")
    parser.add_argument("--only", action="append", default=[], help="part of an attack's name; can be repeated")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    passed = True
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", ignore_cleanup_errors=True) as directory:
        service = ServiceProcess(Path(directory))
        service.start()
        try:
            with service.client():
                token = admin_token_file(service.state_dir).read_text().strip()
            print(f"{'attack':34} {'median ms':>10} {'max ms':>8} {'ratio':>6}  responses to the attack")
            quiet = probe(service.url, options.seconds)
            report("none", quiet, quiet, Counter())
            for name, attack in selected(attacks(service.url, token), options.only).items():
                times, statuses = measure_alongside(service.url, attack, options.clients, options.seconds)
                passed &= report(name, times, quiet, statuses)
            for name, opener in selected({"idle connections": idle, "withheld bodies": withheld}, options.only).items():
                connections = opener(service.url)
                counts: Counter[Any] = Counter({"connections": len(connections)})
                passed &= report(name, probe(service.url, options.seconds), quiet, counts)
                for connection in connections:
                    connection.close()
                time.sleep(2)
        finally:
            service.stop()
    print(f"target: at most {MAX_SECONDS:g} s: {'met' if passed else 'MISSED'}")
    return 0 if passed else 1


def selected(by_name: dict[str, T], parts: Sequence[str]) -> dict[str, T]:
    """Return what has one of these texts in its name; everything if there are none."""
    return {name: value for name, value in by_name.items() if not parts or any(part in name for part in parts)}


def report(name: str, times: list[float], quiet: list[float], statuses: "Counter[Any]") -> bool:
    """Print one line; return whether every response was in time."""
    counts = " ".join(f"{status}: {count}" for status, count in sorted(statuses.items(), key=str))
    ratio = median(times) / median(quiet)
    print(f"{name:34} {median(times) * 1e3:10.1f} {max(times) * 1e3:8.0f} {ratio:6.1f}  {counts}", flush=True)
    return max(times) <= MAX_SECONDS


def probe(url: str, seconds: float) -> list[float]:
    """Return the times of requests to `/livez`, each on a new connection, in seconds."""
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        try:
            httpx.get(f"{url}/livez", timeout=60).raise_for_status()
        except httpx.HTTPError:
            times.append(60.0)
        else:
            times.append(time.perf_counter() - started)
        time.sleep(0.02)
    return times


def measure_alongside(url: str, attack: Attack, clients: int, seconds: float) -> tuple[list[float], "Counter[Any]"]:
    """Return the times of `/livez` beside an attack, and the statuses of the attack's responses."""
    # In the process of the probe, the threads of the attack would delay the probe itself.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_attack, args=(url, attack, clients, theirs), daemon=True)
    process.start()
    time.sleep(0.5)
    times = probe(url, seconds)
    ours.send("end")
    statuses: Counter[Any] = ours.recv()
    process.join()
    return times, statuses


def run_attack(url: str, attack: Attack, clients: int, control: Connection) -> None:
    """Send requests from this many clients until a message arrives, and send the statuses of the responses."""
    statuses: Counter[Any] = Counter()
    over = threading.Event()

    def run(client: int) -> None:
        number = client
        with httpx.Client(base_url=url, timeout=60) as http:
            while not over.is_set():
                with suppress(httpx.HTTPError):
                    statuses[attack(http, number).status_code] += 1
                number += clients

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    control.recv()
    over.set()
    for thread in threads:
        thread.join()
    control.send(statuses)


def idle(url: str) -> list[socket.socket]:
    """Open more connections than the service allows, without a request."""
    address = urlsplit(url)
    return [socket.create_connection((address.hostname or "", address.port or 0)) for _ in range(IDLE_CONNECTIONS)]


def withheld(url: str) -> list[socket.socket]:
    """Begin requests without a token whose bodies do not come."""
    address = urlsplit(url)
    head = f"POST /v1/tokens HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    body = "Content-Length: 262144\r\n\r\n" + "x" * 200_000
    connections = []
    for _ in range(INCOMPLETE_REQUESTS):
        connection = socket.create_connection((address.hostname or "", address.port or 0))
        with suppress(OSError):
            connection.sendall((head + body).encode())
        connections.append(connection)
    return connections


if __name__ == "__main__":
    sys.exit(main())
