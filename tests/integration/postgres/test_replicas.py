"""An API replica shares its tokens and notifications with the service that reconciles."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from service.auth.tokens import new_user_token
from service.reconciler.poll_loop import ChangeWatcher
from tests.conftest import empty
from tests.support.postgres import PostgresServer
from tests.support.wait import NO_TLS, wait_until
from tests.support.world import SPEC, World
from trainyard.demo import free_port

Start = Callable[..., str]


@pytest.fixture
def start(migrated_postgres: str, tmp_path: Path) -> Iterator[Start]:
    """Start a process of the service on one database; its URL once it is ready."""
    processes = []
    token = tmp_path / "token"
    token.write_text(new_user_token())
    token.chmod(0o600)

    def begin(name: str, **settings: str) -> str:
        port = free_port()
        given = {
            "database_url": migrated_postgres,
            "state_dir": str(tmp_path / name),
            "runs_dir": str(tmp_path / "runs"),
            "port": str(port),
            "backend": "local",
            "accelerator": "cpu",
            "admin_token_file": str(token),
            **settings,
        }
        environment = os.environ | {f"TRAINYARD_{key.upper()}": value for key, value in given.items()}
        with (tmp_path / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "service", "serve"]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _ready(url), 60, f"{name} to be ready")
        return url

    yield begin
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)
    empty(migrated_postgres)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2, verify=NO_TLS).is_success
    except httpx.HTTPError:
        return False


@pytest.mark.heavy
def test_a_replica_shares_the_token_and_notifies_the_reconciler(start: Start, tmp_path: Path) -> None:
    api = start("api", reconcile="false")
    head = {"Authorization": f"Bearer {(tmp_path / 'token').read_text()}"}
    job = httpx.post(f"{api}/v1/jobs", json=SPEC, headers=head).raise_for_status().json()["id"]
    assert httpx.get(f"{api}/v1/jobs/{job}", headers=head).json()["status"] == "queued"
    both = start("both")
    assert httpx.get(f"{both}/v1/jobs", headers=head).status_code == 200
    wait_until(lambda: httpx.get(f"{api}/v1/jobs/{job}", headers=head).json()["status"] != "queued", 30, "a hand-over")
    httpx.post(f"{api}/v1/jobs/{job}/cancel", headers=head).raise_for_status()
    notified = time.monotonic()
    wait_until(lambda: httpx.get(f"{api}/v1/jobs/{job}", headers=head).json()["status"] == "cancelled", 60, "its end")
    assert time.monotonic() - notified < 30


@pytest.mark.cpu_seconds(6)
def test_replica_rejects_another_schema_version(postgres_server: PostgresServer, tmp_path: Path) -> None:
    url = postgres_server.create_database()
    given = {"DATABASE_URL": url, "STATE_DIR": str(tmp_path), "RECONCILE": "false", "PORT": "0"}
    environment = os.environ | {f"TRAINYARD_{key}": value for key, value in given.items()}
    command = [sys.executable, "-m", "service", "serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "run python -m service migrate" in done.stderr) == (1, True)


def test_writes_of_other_replicas_notify_and_idle_ones_do_not(world: World) -> None:
    hints: list[bool] = []
    watcher = ChangeWatcher(world.database, lambda: hints.append(True))
    watcher.run_once()
    watcher.run_once()
    assert len(hints) == 1
    job = world.submit()
    watcher.run_once()
    watcher.run_once()
    assert len(hints) == 2
    world.client.post(f"/v1/jobs/{job}/cancel")
    watcher.run_once()
    assert len(hints) == 3
