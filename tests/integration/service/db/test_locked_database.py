"""A database that takes no writes is reported within seconds, to every writer."""

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.world import SPEC, World

BUSY_MILLISECONDS = 700


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
    clients = [world.new_client(world.token) for _ in range(8)]
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda client: client.post("/v1/jobs", json=SPEC), clients))
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(503, "database")] * 8
    assert time.monotonic() - started < 5 * BUSY_MILLISECONDS / 1000, "one after another they would take 8 times that"


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
