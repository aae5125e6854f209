"""A real cluster for the session, and services that submit to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import empty
from tests.support.paced import Pace
from tests.support.slurm_lab import SlurmLab, SlurmMissingError, Variant, running_lab
from trainyard.demo import ServiceProcess


def cluster(variant: Variant | None = None) -> Iterator[SlurmLab]:
    """Two nodes. Without Slurm and without a way to install it: skipped with a hint, in CI an error."""
    running = running_lab(variant)
    try:
        made = running.__enter__()
    except SlurmMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    try:
        yield made
    finally:
        running.__exit__(None, None, None)


@pytest.fixture(scope="session")
def lab() -> Iterator[SlurmLab]:
    """The cluster that most tests share: no accounting, and a controller that remembers."""
    yield from cluster()


@pytest.fixture(scope="session")
def accounted_lab() -> Iterator[SlurmLab]:
    """Accounting, a controller that forgets within seconds, and preemption that would requeue."""
    yield from cluster(Variant(accounting=True, min_job_age=2, preempt_mode="REQUEUE", grace_seconds=15))


@pytest.fixture(scope="session")
def forgetful_lab() -> Iterator[SlurmLab]:
    """A controller that forgets within seconds, and no accounting to ask."""
    yield from cluster(Variant(min_job_age=2))


@pytest.fixture
def slurm(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """The cluster as this process's own, and empty at the end."""
    yield from _ours(lab, monkeypatch)


@pytest.fixture
def accounted(accounted_lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    yield from _ours(accounted_lab, monkeypatch)


@pytest.fixture
def forgetful(forgetful_lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    yield from _ours(forgetful_lab, monkeypatch)


def _ours(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    monkeypatch.setenv("SLURM_CONF", str(lab.conf))
    yield lab
    lab.cancel_all()


@contextmanager
def slurm_service(folder: Path, **settings: str) -> Iterator[ServiceProcess]:
    """A service on the cluster, in a process of its own; the environment names the cluster."""
    quick = {"tick_seconds": "0.3", "slurm_poll_seconds": "0.5", "slurm_max_poll_seconds": "2"}
    service = ServiceProcess(folder, backend="slurm", accelerator="cpu", **(quick | settings))
    service.start()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture
def service(request: pytest.FixtureRequest, slurm: SlurmLab, tmp_path: Path) -> Iterator[ServiceProcess]:
    """On SQLite, where a test does not ask for `postgres`."""
    if getattr(request, "param", "sqlite") == "sqlite":
        with slurm_service(tmp_path) as made:
            yield made
        return
    url = request.getfixturevalue("migrated_postgres")
    with slurm_service(tmp_path, database_url=url) as made:
        yield made
    empty(url)


@pytest.fixture
def pace(tmp_path: Path) -> Iterator[Pace]:
    """Of the runs that are paced; at the end they hurry."""
    made = Pace(tmp_path)
    yield made
    made.set(0)


on_both_databases = pytest.mark.parametrize(
    "service", ["sqlite", pytest.param("postgres", marks=pytest.mark.smoke)], indirect=True
)
