"""One idempotency key sent to two services at once: one job."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import empty
from tests.support.wait import NO_TLS, wait_until
from tests.support.world import SPEC
from trainyard.demo import free_port

AT_ONCE = 8


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2, verify=NO_TLS).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def pair(migrated_postgres: str, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """Two services on one database, with states of their own; their URLs and a token."""
    processes, urls = [], []
    try:
        for name in ("one", "two"):
            port = free_port()
            environment = os.environ | {
                "TRAINYARD_DATABASE_URL": migrated_postgres,
                "TRAINYARD_STATE_DIR": str(tmp_path / name),
                "TRAINYARD_RUNS_DIR": str(tmp_path / "runs"),
                "TRAINYARD_PORT": str(port),
                "TRAINYARD_BACKEND": "local",
                "TRAINYARD_ACCELERATOR": "cpu",
                "TRAINYARD_LOCAL_SLOTS": "2",
            }
            command = [sys.executable, "-m", "service", "serve"]
            with (tmp_path / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            urls.append(f"http://127.0.0.1:{port}")
            wait_until(lambda: _ready(urls[-1]), 60, f"service {name} to be ready")
        yield urls[0], urls[1], (tmp_path / "one" / "admin_token").read_text().strip()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)
        empty(migrated_postgres)


@pytest.mark.parametrize("path", ["/v1/jobs", pytest.param("/v1/sweeps", marks=pytest.mark.slow)])
def test_concurrent_requests_to_two_services_create_one_job(pair: tuple[str, str, str], path: str) -> None:
    *urls, token = pair
    body = SPEC if path == "/v1/jobs" else {"spec": SPEC, "grid": {"seed": [1, 2]}}
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "the-same"}
    together, answers = threading.Barrier(AT_ONCE), []

    def post(url: str) -> None:
        together.wait()
        answers.append(httpx.post(f"{url}{path}", json=body, headers=headers, timeout=60, verify=NO_TLS))

    threads = [threading.Thread(target=post, args=(urls[n % 2],)) for n in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [201] * AT_ONCE
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    listed = httpx.get(f"{urls[0]}{path}", headers=headers).json()["data"]
    assert len(listed) == 1
