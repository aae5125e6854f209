"""Limits: a full disk, an interrupted migration, hundreds of streams."""

import asyncio
import hashlib
import os
import resource
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.db.engine import Database
from service.db.migrate import upgrade
from service.db.models import Base
from service.streaming.broadcaster import StreamOffset
from service.streaming.sources import JobSource
from service.streaming.subscription import Subscription
from tests.support.forks import in_a_fork
from tests.support.world import World

KILLED = 137


@pytest.mark.fault_scenario(24)
@pytest.mark.databases("sqlite")
def test_24_full_database_stores_no_partial_request(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    pages = pages_of(world.database, None)
    pages_of(world.database, pages)
    points: list[tuple[str, int, Any]] = [("train/loss", step, 1.0) for step in range(1, 5001)]
    response = worker.metrics(points[:1000])
    for start in range(1000, 5000, 1000):
        response = worker.metrics(points[start : start + 1000]) if response.status_code == 200 else response
    assert (response.status_code, response.json()["error"]["code"]) == (503, "database")
    steps = steps_of(world, job)
    assert len(steps) % 1000 == 0, "no half batch"
    assert world.client.get(f"/v1/jobs/{job}").status_code == 200, "what is there can be read"
    pages_of(world.database, 1_000_000)
    for start in range(0, 5000, 1000):
        assert worker.metrics(points[start : start + 1000]).status_code == 200
    assert steps_of(world, job) == list(range(1, 5001))


def pages_of(database: Database, limit: int | None) -> int:
    """Return the number of the database's pages; with `limit`, set their maximum."""
    with database.write() as session:
        if limit is not None:
            session.execute(sa.text(f"PRAGMA max_page_count={limit}"))
        return int(session.scalar(sa.text("PRAGMA page_count")) or 0)


def steps_of(world: World, job: str) -> list[int]:
    series = world.client.get(f"/v1/jobs/{job}/metrics?keys=train/loss&max_points=1000000").json()["series"]
    return list(series[0]["steps"]) if series else []


@pytest.mark.fault_scenario(29)
@pytest.mark.parametrize("stride", [pytest.param(15, marks=pytest.mark.heavy), pytest.param(1, marks=pytest.mark.slow)])
def test_29_interrupted_migration_continues_at_the_next_start(tmp_path: Path, stride: int) -> None:
    whole = tables(tmp_path / "whole.sqlite", upgrade)
    statement = 0
    while True:
        path = tmp_path / f"{statement}.sqlite"
        if in_a_fork(partial(upgrade_until, f"sqlite:///{path}", statement)) != KILLED:
            break
        assert tables(path, upgrade) == whole, f"after a kill at statement {statement}"
        statement += stride
    assert statement > 30, "the kills are to strike everywhere in the migrations"


def upgrade_until(url: str, statement: int) -> None:
    """Migrate, but exit before the statement with that number."""
    executed = 0

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def count(*_: object) -> None:
        nonlocal executed
        if executed == statement:
            os._exit(KILLED)
        executed += 1

    upgrade(url)


def tables(path: Path, migrate: Callable[[str], None]) -> dict[str, list[str]]:
    """Migrate the database with a function of its URL; return the columns of each table."""
    url = f"sqlite:///{path}"
    migrate(url)
    engine = sa.create_engine(url)
    inspector = sa.inspect(engine)
    columns = {name: sorted(c["name"] for c in inspector.get_columns(name)) for name in inspector.get_table_names()}
    engine.dispose()
    assert set(Base.metadata.tables) <= set(columns)
    return columns


@pytest.mark.fault_scenario(30)
@pytest.mark.slow
def test_30_five_hundred_streams_end_with_the_same_events(world: World) -> None:
    """Clients watch the second half of the run; every tenth one reads slowly and reconnects once."""
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", step, 1.0) for step in range(1000)])
    app_state = world.app_state
    source = JobSource(app_state.database, app_state.settings.runs, app_state.clock, job)

    def report_rest() -> None:
        for start in range(1000, 5000, 1000):
            worker.metrics([("train/loss", step, 1.0) for step in range(start, start + 1000)])
        worker.end("completed")
        world.tick(2)

    async def client(number: int) -> StreamReader:
        reader, slow = StreamReader(), number % 10 == 0
        while not reader.over:
            stream = Subscription(app_state.broadcaster, source, logs=True, owner=f"user-{number % 10}")
            reader.over = not await stream.start(StreamOffset(reader.position))
            async with aclosing(stream.events()) as texts:
                async for text in texts:
                    reader.feed(text)
                    await asyncio.sleep(0.05 if slow else 0)
                    if slow and reader.position and not reader.came_back:
                        reader.came_back = True
                        break
        return reader

    async def run_clients() -> list[StreamReader]:
        clients = asyncio.gather(*(client(number) for number in range(500)))
        await asyncio.to_thread(report_rest)
        return await clients

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    streams = asyncio.run(run_clients())
    assert len({stream.digest.hexdigest() for stream in streams}) == 1
    assert {stream.points for stream in streams} == {5000}
    assert sum(stream.came_back for stream in streams) == 50
    assert app_state.broadcaster.open_streams == 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000, "kilobytes: what is read once is sent to all"


class StreamReader:
    """One client of the stream: its position, the number of points and a digest of all events."""

    def __init__(self) -> None:
        self.position, self.points = 0, 0
        self.over = self.came_back = False
        self.digest = hashlib.sha256()

    def feed(self, text: str) -> None:
        for message in text.split("\n\n"):
            if not message.startswith("id: "):
                continue
            self.position = int(message.split("\n", 1)[0].removeprefix("id: "))
            self.points += message.count('"step":')
            self.digest.update(message.encode())
            self.over = self.over or '"status":"succeeded"' in message
