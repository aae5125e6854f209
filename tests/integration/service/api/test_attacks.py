"""`/livez` responds quickly during attacks, with a wide bound: the machine may be busy."""

import json
import multiprocessing
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess

MAX_SECONDS = 5.0
"""Before their costs were bounded, these attacks delayed `/livez` by 10 s and more."""
ATTACK_SECONDS, CLIENTS = 0.3, 8
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
Attack = Callable[[httpx.Client, int], httpx.Response]
"""Sends one request; the number distinguishes requests."""


def new_token(url: str, token: str, name: str) -> dict[str, str]:
    """Create a user's token, and return the header with it. Each attack has its own rate limit."""
    admin = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(f"{url}/v1/tokens", json={"name": name}, headers=admin)
    return {"Authorization": f"Bearer {answer.raise_for_status().json()['token']}"}


def attacks_by_name(url: str, token: str) -> dict[str, Attack]:
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


def probe(url: str) -> list[float]:
    """Return the times of requests to `/livez`, each on a new connection, in seconds."""
    times = []
    until = time.monotonic() + ATTACK_SECONDS
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


def measure_alongside(url: str, attack: Attack) -> tuple[list[float], "Counter[Any]"]:
    """Return the times of `/livez` during an attack, and the statuses of the attack's responses."""
    # In the process of the probe, the threads of the attack would delay the probe itself.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_attack, args=(url, attack, theirs), daemon=True)
    process.start()
    time.sleep(0.5)
    times = probe(url)
    ours.send("end")
    statuses: Counter[Any] = ours.recv()
    process.join()
    return times, statuses


def run_attack(url: str, attack: Attack, control: Connection) -> None:
    """Send requests from all clients until a message arrives, and send the statuses of the responses."""
    statuses: Counter[Any] = Counter()
    over = threading.Event()

    def run(client: int) -> None:
        number = client
        with httpx.Client(base_url=url, timeout=60) as http:
            while not over.is_set():
                with suppress(httpx.HTTPError):
                    statuses[attack(http, number).status_code] += 1
                number += CLIENTS

    threads = [threading.Thread(target=run, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    control.recv()
    over.set()
    for thread in threads:
        thread.join()
    control.send(statuses)


def open_idle(url: str) -> list[socket.socket]:
    """Open more connections than the service allows, without a request."""
    address = urlsplit(url)
    return [socket.create_connection((address.hostname or "", address.port or 0)) for _ in range(IDLE_CONNECTIONS)]


def withhold_bodies(url: str) -> list[socket.socket]:
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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("attacked"))
    process.start()
    process.client().close()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def attacks(service: ServiceProcess) -> dict[str, Attack]:
    return attacks_by_name(service.url, admin_token_file(service.state_dir).read_text().strip())


@pytest.mark.parametrize(
    "name",
    [
        "cookie of 62 kB, no token",
        "YAML of 256 kB",
        "plan of 512 layers, 64 targets",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "new wrong token each",
                "metrics page, no token",
                "OpenAPI document, no token",
                "list of 200 jobs",
                "nested JSON of 256 kB",
                "12,000 unknown fields",
                "sweep over 200 large models",
            )
        ),
    ],
)
def test_livez_responds_during_an_attack(service: ServiceProcess, attacks: dict[str, Attack], name: str) -> None:
    times, statuses = measure_alongside(service.url, attacks[name])
    assert max(times) < MAX_SECONDS
    assert statuses
    assert max(statuses) < 500


@pytest.mark.slow
@pytest.mark.parametrize("name", ["idle", "withheld"])
def test_livez_responds_with_many_open_connections(service: ServiceProcess, name: str) -> None:
    opened = {"idle": open_idle, "withheld": withhold_bodies}[name](service.url)
    times = probe(service.url)
    for connection in opened:
        connection.close()
    assert max(times) < MAX_SECONDS
