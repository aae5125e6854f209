"""A real service in its own process, on SQLite and the local backend, with real workers."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paced import Pace
from tests.support.terminal import run_trainyard
from trainyard.client import Client
from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service"), local_slots="2", tick_seconds="0.3")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[Client]:
    with service.client() as made:
        yield made


@pytest.fixture
def runs(service: ServiceProcess) -> Path:
    return service.runs_dir


@pytest.fixture
def pace(tmp_path: Path) -> Iterator[Pace]:
    """Yield the pace of paced runs; at the end they run at full speed."""
    made = Pace(tmp_path)
    yield made
    made.set(0)


@pytest.fixture
def run(
    service: ServiceProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> "Callable[..., subprocess.CompletedProcess[str]]":
    """Return a function that runs a program, whose text it stores, from its folder."""
    token = admin_token_file(service.state_dir).read_text().strip()
    environ = {**os.environ, "TRAINYARD_URL": service.url, "TRAINYARD_TOKEN": token, "TERM": "dumb"}
    monkeypatch.chdir(tmp_path)

    def start(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "train.py").write_text(text)
        return run_trainyard(environ, "run", *arguments)

    return start
