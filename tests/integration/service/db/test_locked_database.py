"""A database that takes no writes is reported to every writer, without a wait of each."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from service.core.errors import UnavailableError
from tests.support.wait import wait_until
from tests.support.world import SPEC, World

BUSY_MILLISECONDS = 200
WRITERS = 8


@pytest.fixture
def locked(world: World) -> Iterator[None]:
    """Lock the SQLite file from outside, and shorten the time that a writer waits for it."""

    def shorten(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA busy_timeout={BUSY_MILLISECONDS}")

    engine = world.database._writer
    sa.event.listen(engine, "checkout", shorten)
    with closing(sqlite3.connect(str(world.database.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    sa.event.remove(engine, "checkout", shorten)


@pytest.mark.databases("sqlite", only=True)
def test_writers_do_not_wait_one_after_another_for_a_locked_file(world: World, locked: None) -> None:
    lock = world.database._write_lock
    assert lock is not None
    waits = []

    def await_others(*_: Any) -> None:
        """Let the first writer wait for the file only when the others are behind it."""
        waits.append(len(lock._waiting))
        if len(waits) == 1:
            wait_until(lambda: len(lock._waiting) == WRITERS - 1, timeout=60)

    def write(_: int) -> None:
        with pytest.raises(UnavailableError, match="locked"), world.database.write() as session:
            session.execute(sa.text("SELECT 1"))

    sa.event.listen(world.database._writer, "checkout", await_others)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    sa.event.remove(world.database._writer, "checkout", await_others)
    assert len(waits) == 1, "each would have waited for the file itself"


@pytest.mark.databases("sqlite", only=True)
def test_request_to_a_locked_file_is_answered_by_an_error(world: World, locked: None) -> None:
    answer = world.client.post("/v1/jobs", json=SPEC)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database")


@pytest.mark.databases("sqlite", only=True)
@pytest.mark.fault_scenario(35)
def test_locked_file_is_not_ready_until_it_is_released(world: World, locked: None) -> None:
    unready = world.new_client(None).get("/readyz")
    assert (unready.status_code, "locked" in unready.json()["checks"]["database"]) == (503, True)


def test_readiness_writes_at_most_one_row_a_second(world: World) -> None:
    def writes() -> int:
        with world.database.read() as session:
            return int(session.execute(sa.text("SELECT term FROM leases WHERE name = 'readiness'")).scalar_one())

    client = world.new_client(None)
    for seconds, expected in ((0, 1), (0.5, 1), (1, 2)):
        world.clock.advance(seconds)
        assert (client.get("/readyz").status_code, writes()) == (200, expected)
