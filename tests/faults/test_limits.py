"""What runs out or comes in crowds: the disk, a migration's time, streams by the hundred, jobs by the thousand."""

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.db.engine import Database
from service.db.migrate import upgrade
from service.db.models import Base
from service.reports.stream import Slice, follow, read_slice
from tests.support.forks import in_a_fork
from tests.support.world import World
from trainyard.contract.layout import RunLayout

ROOT = Path(__file__).parents[2]
KILLED = 137


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_24_a_database_without_room_takes_nothing_by_halves(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    pages = pages_of(world.database, None)
    pages_of(world.database, pages)
    many: list[tuple[str, int, Any]] = [("train/loss", step, 1.0) for step in range(1, 5001)]
    refused = worker.metrics(many[:1000])
    for start in range(1000, 5000, 1000):
        refused = worker.metrics(many[start : start + 1000]) if refused.status_code == 200 else refused
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database")
    kept = steps_of(world, job)
    assert len(kept) % 1000 == 0, "no half batch"
    assert world.client.get(f"/v1/jobs/{job}").status_code == 200, "what is there can be read"
    pages_of(world.database, 1_000_000)
    for start in range(0, 5000, 1000):
        assert worker.metrics(many[start : start + 1000]).status_code == 200
    assert steps_of(world, job) == list(range(1, 5001))


def pages_of(database: Database, limit: int | None) -> int:
    """The pages that the database has; with a limit, the most that it may have from now on."""
    with database.write() as session:
        if limit is not None:
            session.execute(sa.text(f"PRAGMA max_page_count={limit}"))
        return int(session.scalar(sa.text("PRAGMA page_count")) or 0)


def steps_of(world: World, job: str) -> list[int]:
    series = world.client.get(f"/v1/jobs/{job}/metrics?keys=train/loss&max_points=1000000").json()["series"]
    return list(series[0]["steps"]) if series else []


def test_29_a_migration_that_is_interrupted_goes_on_at_the_next_start(tmp_path: Path) -> None:
    whole = tables(tmp_path / "whole.sqlite", upgrade)
    place = 0
    while True:
        path = tmp_path / f"{place}.sqlite"
        if in_a_fork(partial(upgrade_until, f"sqlite:///{path}", place)) != KILLED:
            break
        assert tables(path, upgrade) == whole, f"after a kill at statement {place}"
        place += 2
    assert place > 30, "the kills are to strike everywhere in the migrations"


def upgrade_until(url: str, place: int) -> None:
    """Die before the statement of that number."""
    seen = 0

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def count(*_: object) -> None:
        nonlocal seen
        if seen == place:
            os._exit(KILLED)
        seen += 1

    upgrade(url)


def tables(path: Path, make: Callable[[str], None]) -> dict[str, list[str]]:
    """The columns of each table."""
    url = f"sqlite:///{path}"
    make(url)
    engine = sa.create_engine(url)
    found = sa.inspect(engine)
    columns = {name: sorted(c["name"] for c in found.get_columns(name)) for name in found.get_table_names()}
    engine.dispose()
    assert set(Base.metadata.tables) <= set(columns)
    return columns


@pytest.mark.slow
def test_30_five_hundred_streams_end_with_the_same_events(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    for start in range(0, 1000, 500):
        worker.metrics([("train/loss", step, 1.0) for step in range(start, start + 500)])
    worker.end("completed")
    world.tick()
    run = RunLayout(world.settings.runs / job)

    def read(after: int) -> Slice:
        return read_slice(world.database, job, after, run=run, logs=True, now=datetime.now(UTC))

    async def client(number: int) -> list[str]:
        """The tenth ones read slowly; each comes back once in the middle."""
        seen: list[str] = []
        async for text in follow(read, 0):
            seen.append(text)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
            if len(seen) == 3:
                break
        place = int(seen[-1].split("\n", 1)[0].removeprefix("id: "))
        return seen + [text async for text in follow(read, place) if not text.startswith("retry")]

    async def storm() -> list[list[str]]:
        return await asyncio.gather(*(client(number) for number in range(500)))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    streams = asyncio.run(storm())
    assert len({tuple(stream) for stream in streams}) == 1
    assert sum(text.count('"step":') for text in streams[0]) >= 1000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    kept = sum(len(text) for text in streams[0]) * len(streams) // 1024
    assert grown < kept + 300_000, "kilobytes: what the clients keep, and no more than a bounded part of the service's"


@pytest.mark.slow
def test_31_a_tick_over_ten_thousand_jobs_stays_within_its_bounds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.reconcile", "--ticks", "3"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
