"""A real service in its own process, on SQLite and the local backend, with real workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paced import Pace
from trainyard.client import Client
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
