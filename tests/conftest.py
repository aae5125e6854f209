"""Fixtures for all tests, and the selection of databases."""

import gc
import os
import shutil
import sqlite3
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url

from service.db.migrate import upgrade
from service.db.models import Base
from tests.support.cpu_limit import excess, limit_of, used_seconds
from tests.support.postgres import PostgresMissingError, PostgresServer, running_server
from tests.support.process_groups import Group, group_of, groups_of_process, may_have_heavy, position
from tests.support.world import World
from trainyard.installation import sync_client

# Hypothesis measures wall time, which on a busy machine says nothing about the code.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Several test processes share the cores, and the threads of one process spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def write_sync_client() -> None:
    """Write the synchronous client, so that no test runs with one that is older than the asynchronous one."""
    if (changed := sync_client.write()) and "trainyard.client" in sys.modules:
        raise pytest.UsageError(f"trainyard/client/_sync was out of date ({', '.join(changed)}); run pytest again")


# Here, because the conftest files of folders below, which are loaded next, import the client.
write_sync_client()

# Test modules import torch, transformers and the service; each collection of garbage would scan all of it again.
gc.set_threshold(50_000, 10, 10)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--databases",
        choices=["marked", "sqlite", "both"],
        default="marked",
        help="databases of the tests that use one: those of their marker (default), SQLite alone, or always both",
    )
    parser.addoption(
        "--own-groups",
        action="store_true",
        help="with -n: each process collects only its groups of tests (tests/support/process_groups.py)",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each test process (`-n 2`) whole files."""
    from tests.support.process_groups import SharedScheduling

    return SharedScheduling(config, log)


def collected_groups(config: pytest.Config) -> tuple[Group, ...]:
    """Return the groups of tests that this process collects."""
    process = getattr(config, "workerinput", None)
    if process is None or not config.getoption("--own-groups"):
        return groups_of_process(0, 1)
    count = process["workercount"]
    number = int(process["workerid"].removeprefix("gw")) % count
    return groups_of_process(number, count, mostly_torch=selects_heavy(config))


def selects_heavy(config: pytest.Config) -> bool:
    return str(config.option.markexpr).startswith("heavy")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the groups of other processes alone, and for `-m "heavy..."` the modules without a heavy test."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    if group_of(path) not in collected_groups(config):
        return True
    without = selects_heavy(config) and collection_path.suffix == ".py" and not may_have_heavy(collection_path)
    return True if without else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse a module that imports torch in a process without tests of torch."""
    before = "torch" in sys.modules
    report = yield
    if not before and "torch" in sys.modules and "torch" not in collected_groups(collector.config):
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} imports torch, unlike what tests/support/process_groups.py states"
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under xdist, start with the groups and files that take longest, so that no process works alone at the end."""
    if hasattr(config, "workerinput"):
        groups = collected_groups(config)
        items.sort(key=lambda item: position(item.nodeid.split("::")[0], groups))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that uses more processor time than its limit."""
    started = used_seconds()
    yield
    problem = excess(used_seconds() - started, limit_of(item))
    assert problem is None, problem


def pytest_collection_finish() -> None:
    """Exclude the collected tests and what they import from garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Select the databases of each test that uses `database_url`, directly or through a fixture such as `world`.

    Tests of SQL, locks and streams run on SQLite and on Postgres, which is the default. Tests of what the service does
    above the database carry `@pytest.mark.databases("sqlite")`, mostly for the whole module (`pytestmark`); of these,
    so many run on Postgres too that it gets each statement of the module at least once. A closer marker wins.
    `--databases` overrides the markers, except those of tests about one kind of database
    (`@pytest.mark.databases("sqlite", only=True)`).
    """
    if "database_url" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption("--databases")
    marker = metafunc.definition.get_closest_marker("databases")
    kinds: tuple[str, ...] = ("sqlite", "postgres")
    if option == "sqlite":
        # None for a test about Postgres, which pytest then skips.
        is_other = marker is not None and marker.kwargs.get("only") and "sqlite" not in marker.args
        kinds = () if is_other else ("sqlite",)
    elif marker is not None and marker.args and (option == "marked" or marker.kwargs.get("only")):
        kinds = marker.args
    metafunc.parametrize("database_url", kinds, indirect=True)


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Print tracebacks as the service does. Rich's default shows all variables, which takes half a minute."""
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, console]
    )


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Let what this process writes reach the disk later: no test switches the machine off."""
    with patch("os.fsync", new=lambda _handle: None):
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server. If there is none and it cannot be installed, skip with a hint; in CI fail."""
    server = running_server()
    try:
        running = server.__enter__()
    except PostgresMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "migrated.sqlite"
    upgrade(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        # The file stores the mode; each copy would have to change it otherwise.
        connection.execute("PRAGMA journal_mode=WAL")
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> str:
    """Return one database for all tests: emptying it is ten times as fast as creating another."""
    return postgres_server.copy_of(upgrade)


def empty(url: str) -> None:
    """Delete all rows of a Postgres database in one round trip."""
    where = make_url(url)
    statements = "".join(f"DELETE FROM {table.name};" for table in reversed(Base.metadata.sorted_tables))
    with psycopg.connect(host=str(where.query["host"]), user=where.username, dbname=where.database) as connection:
        connection.execute(statements.encode())


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty, migrated database; `pytest_generate_tests` selects its kind."""
    if request.param == "sqlite":
        path = tmp_path / "test.sqlite"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
        yield f"sqlite:///{path}"
        return
    url = request.getfixturevalue("migrated_postgres")
    yield url
    empty(url)


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """Yield the service in one process, on the selected database."""
    made = World(database_url, tmp_path / "state")
    yield made
    made.database.dispose()
