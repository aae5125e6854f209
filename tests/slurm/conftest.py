"""A real cluster for the session, and services that submit to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.slurm_lab import SlurmLab, SlurmMissingError, running_lab
from trainyard.demo import ServiceProcess


@pytest.fixture(scope="session")
def lab() -> Iterator[SlurmLab]:
    """Two nodes. Without Slurm and without a way to install it: skipped with a hint, in CI an error."""
    running = running_lab()
    try:
        cluster = running.__enter__()
    except SlurmMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    try:
        yield cluster
    finally:
        running.__exit__(None, None, None)


@pytest.fixture
def slurm(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """The cluster as this process's own, and empty at the end."""
    monkeypatch.setenv("SLURM_CONF", str(lab.conf))
    yield lab
    lab.cancel_all()


@contextmanager
def slurm_service(folder: Path, **settings: str) -> Iterator[ServiceProcess]:
    """A service on the cluster, in a process of its own; the environment names the cluster."""
    quick = {"tick_seconds": "0.3", "slurm_poll_seconds": "0.5", "slurm_slowest_poll_seconds": "2"}
    service = ServiceProcess(folder, backend="slurm", accelerator="cpu", **(quick | settings))
    service.start()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture
def service(slurm: SlurmLab, tmp_path: Path) -> Iterator[ServiceProcess]:
    with slurm_service(tmp_path) as made:
        yield made
