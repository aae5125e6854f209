"""Fixtures with real clusters, and services that submit to them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import empty
from tests.support.paced import Pace
from tests.support.slurm_lab import SlurmLab, SlurmMissingError, Variant, running_lab
from tests.support.tcp_proxy import TcpProxy, start_proxy
from trainyard.demo import ServiceProcess, free_port


def cluster(variant: Variant | None = None) -> Iterator[SlurmLab]:
    """Yield a cluster of two nodes. If Slurm is missing and cannot be installed, skip with a hint; in CI fail."""
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
    """Yield the cluster of most tests: no accounting, and ended jobs are purged late."""
    yield from cluster()


@pytest.fixture(scope="session")
def accounted_lab() -> Iterator[SlurmLab]:
    """Yield a cluster with accounting, early purge of ended jobs, and preemption that requeues."""
    yield from cluster(Variant(accounting=True, min_job_age=2, preempt_mode="REQUEUE", grace_seconds=15))


@pytest.fixture(scope="session")
def forgetful_lab() -> Iterator[SlurmLab]:
    """Yield a cluster with early purge of ended jobs and no accounting."""
    yield from cluster(Variant(min_job_age=2))


@pytest.fixture
def slurm(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """Yield the shared cluster, set up as this process's cluster; its jobs are cancelled at the end."""
    yield from _ours(lab, monkeypatch)


@pytest.fixture
def accounted(accounted_lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    yield from _ours(accounted_lab, monkeypatch)


@pytest.fixture
def purging_lab(forgetful_lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    yield from _ours(forgetful_lab, monkeypatch)


def _ours(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    monkeypatch.setenv("SLURM_CONF", str(lab.conf))
    yield lab
    lab.cancel_all()


@contextmanager
def slurm_service(
    folder: Path, *, of_type: type[ServiceProcess] = ServiceProcess, **settings: str
) -> Iterator[ServiceProcess]:
    """Run a service in its own process on the cluster that the environment names."""
    quick = {"tick_seconds": "0.3", "slurm_poll_seconds": "0.5", "slurm_max_poll_seconds": "2"}
    service = of_type(folder, backend="slurm", accelerator="cpu", **(quick | settings))
    service.start()
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def slurm_service_behind_proxy(folder: Path) -> Iterator[tuple[ServiceProcess, TcpProxy]]:
    """Run a service that workers reach through a connection which the test can cut."""
    port = free_port()
    with start_proxy(port) as proxy, slurm_service(folder, port=str(port), public_url=proxy.url) as service:
        yield service, proxy


@pytest.fixture
def service(request: pytest.FixtureRequest, slurm: SlurmLab, tmp_path: Path) -> Iterator[ServiceProcess]:
    """Yield a service on SQLite, or on Postgres if the test's parameter is `postgres`."""
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
    """Yield the pace of paced runs; at the end they run at full speed."""
    made = Pace(tmp_path)
    yield made
    made.set(0)


on_both_databases = pytest.mark.parametrize(
    "service", ["sqlite", pytest.param("postgres", marks=pytest.mark.smoke)], indirect=True
)
