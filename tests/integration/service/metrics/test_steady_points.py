"""Batches like those before them go a shorter way on Postgres, and nobody can tell but by the clock."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from service.metrics.ingest import writer as writing
from service.metrics.ingest.decoding import PointBatch
from service.metrics.ingest.outcome import Outcome, Stored
from service.metrics.ingest.writer import PointWriter
from tests.support.wait import wait_until
from tests.support.world import World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def batch(
    step: int, value: float = 1.0, *, execution: int = 1, key: str = "a", progress: dict[str, Any] | None = None
) -> PointBatch:
    return PointBatch(execution, 0, [(key, step, value, 0, 0)], progress)


def numbers(outcomes: list[Outcome]) -> list[tuple[int, int]]:
    """Fresh points and duplicates of each."""
    return [(one.fresh, one.duplicates) if isinstance(one, Stored) else (-1, -1) for one in outcomes]


def job_row(world: World, job_id: str) -> Any:
    with world.database.read() as session:
        statement = sa.text("SELECT sequence, latest, progress, updated_at FROM jobs WHERE id = :id")
        types = {"latest": sa.JSON, "progress": sa.JSON}
        return session.execute(statement.columns(**types), {"id": job_id}).one()


def stored(world: World) -> list[tuple[int, int, float]]:
    with world.database.read() as session:
        rows = session.execute(sa.text("SELECT execution, step, value FROM points ORDER BY sequence, step"))
        return [tuple(row) for row in rows]


@pytest.fixture
def writer(world: World) -> PointWriter:
    return PointWriter(world.database)


@pytest.fixture
def short_ways(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many groups were stored in one trip since the last question; on SQLite as many as are asked for."""
    counted: list[int] = []
    store = writing.store

    def counting(*arguments: Any) -> Any:
        kept = store(*arguments)
        counted.append(len(kept))
        return kept

    def since() -> int:
        count = sum(map(bool, counted))
        counted.clear()
        return count

    monkeypatch.setattr(writing, "store", counting)
    return since if world.database.dialect == "postgresql" else lambda: -1


def test_it_stores_what_the_long_way_stores(world: World, writer: PointWriter, short_ways: Callable[[], int]) -> None:
    jobs = [world.submit() for _ in range(2)]
    one, two = (world.start(job).attempt_id for job in jobs)
    writer.write([(one, batch(1)), (two, batch(1))], NOW)
    before = job_row(world, jobs[0])
    assert short_ways() < 1
    group = [(one, batch(2, progress={"step": 2})), (two, batch(2)), (one, batch(3, 7.0)), (one, batch(2))]
    outcomes = writer.write(group, LATER)
    assert short_ways() in (1, -1)
    assert numbers(outcomes) == [(1, 0), (1, 0), (1, 0), (0, 1)]
    mine = [outcomes[0], outcomes[2], outcomes[3]]
    assert [one.sequence for one in mine if isinstance(one, Stored)] == [before.sequence + n for n in (1, 2, 3)]
    after = job_row(world, jobs[0])
    assert after.sequence == before.sequence + 3
    # A point that is there stays as it is, but the newest word about a metric is the last one that was said.
    assert after.latest == {"a": 1.0}
    assert after.progress == {"step": 2, "reported_at": LATER.isoformat()}
    assert after.updated_at > before.updated_at
    assert sorted(stored(world)) == [(1, 1, 1.0), (1, 1, 1.0), (1, 2, 1.0), (1, 2, 1.0), (1, 3, 7.0)]


def test_a_batch_of_progress_alone_keeps_the_newest_values(world: World, writer: PointWriter) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id
    writer.write([(attempt, batch(1, 3.0))], NOW)
    assert numbers(writer.write([(attempt, PointBatch(1, 0, [], {"step": 9}))], LATER)) == [(0, 0)]
    assert numbers(writer.write([(attempt, batch(2, float("2")))], LATER)) == [(1, 0)]
    row = job_row(world, job)
    assert (row.latest, row.progress["step"]) == ({"a": 2.0}, 9)


def test_who_watches_and_who_thins_are_told(world: World, short_ways: Callable[[], int]) -> None:
    told: list[Stored] = []
    touched: list[set[int]] = []
    writer = PointWriter(world.database, told.extend)
    attempt = world.start(world.submit()).attempt_id
    writer.write([(attempt, batch(1))], NOW)
    told.clear()
    world.database.committed.append(touched.append)
    writer.write([(attempt, batch(2)), (attempt, batch(2))], NOW)
    assert short_ways() in (1, -1)
    assert [one.fresh for one in told] == [1, 0]
    assert touched == [{told[0].job_pk}]


def test_what_another_service_has_heard_of_counts(
    world: World, writer: PointWriter, short_ways: Callable[[], int]
) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id
    writer.write([(attempt, batch(1))], NOW)
    PointWriter(world.database).write([(attempt, batch(1, 5.0, execution=2))], NOW)
    short_ways()
    assert numbers(writer.write([(attempt, batch(2, 3.0))], LATER)) == [(1, 0)]
    assert short_ways() < 1
    assert job_row(world, job).latest == {"a": 5.0}, "the word of an execution that is over is not the newest"


def test_an_attempt_that_is_gone_is_said_to_be(world: World, writer: PointWriter) -> None:
    gone, there = (world.start(world.submit()).attempt_id for _ in range(2))
    writer.write([(gone, batch(1)), (there, batch(1))], NOW)
    with world.database.write() as session:
        for statement in ("executions", "points", "job_keys"):
            pk = "(SELECT job_pk FROM attempts WHERE id = :id)"
            session.execute(sa.text(f"DELETE FROM {statement} WHERE job_pk = {pk}"), {"id": gone})
        session.execute(sa.text("DELETE FROM attempts WHERE id = :id"), {"id": gone})
    outcomes = writer.write([(gone, batch(2)), (there, batch(2))], NOW)
    assert [getattr(one, "code", None) or getattr(one, "fresh", None) for one in outcomes] == ["attempt_not_found", 1]


def test_what_was_said_while_it_waited_for_the_job_comes_before_it(
    world: World, writer: PointWriter, short_ways: Callable[[], int]
) -> None:
    if world.database.dialect == "sqlite":
        pytest.skip("writers wait for the whole file")
    job = world.submit()
    attempt = world.start(job).attempt_id
    writer.write([(attempt, batch(1))], NOW)
    before = job_row(world, job).sequence
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(writer.write([(attempt, batch(2, 9.0))], LATER)))
    with world.database.write() as session:
        session.execute(
            sa.text('UPDATE jobs SET sequence = sequence + 5, latest = \'{"a": 2.0, "b": 4.0}\' WHERE id = :id'),
            {"id": job},
        )
        thread.start()
        wait_until(lambda: _waits(world), 10, "the writer to wait for the job")
    thread.join(10)
    assert short_ways() == 1
    assert [one.sequence for one in outcomes if isinstance(one, Stored)] == [before + 6]
    assert job_row(world, job)[:2] == (before + 6, {"a": 9.0, "b": 4.0})


def _waits(world: World) -> bool:
    with world.database.read() as session:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(session.scalar(sa.text(waiting)))


def test_two_attempts_of_one_job_go_the_long_way(
    world: World, writer: PointWriter, short_ways: Callable[[], int]
) -> None:
    job = world.submit()
    first = world.start(job).attempt_id
    writer.write([(first, batch(1))], NOW)
    with world.database.write() as session:
        columns = [row[0] for row in session.execute(sa.text("SELECT * FROM attempts LIMIT 0")).cursor.description]  # type: ignore[union-attr]
        changed = {"id": "'feedfeedfeedfeed'", "number": "2", "reported_execution": "NULL", "resumed_from_step": "NULL"}
        changed |= {"execution": "execution + 4", "tag": "'another'", "scheduler_id": "NULL"}
        selected = ", ".join(changed.get(column, column) for column in columns)
        session.execute(sa.text(f"INSERT INTO attempts ({', '.join(columns)}) SELECT {selected} FROM attempts"))
    second = "feedfeedfeedfeed"
    assert numbers(writer.write([(second, batch(2, execution=5))], NOW)) == [(1, 0)]
    short_ways()
    outcomes = writer.write([(first, batch(3)), (second, batch(4, execution=5))], NOW)
    assert short_ways() < 1
    assert numbers(outcomes) == [(1, 0), (1, 0)]
    assert len({one.sequence for one in outcomes if isinstance(one, Stored)}) == 2


def test_two_writers_of_the_same_jobs_store_everything_once(world: World) -> None:
    jobs = [world.submit() for _ in range(3)]
    attempts = [world.start(job).attempt_id for job in jobs]
    turn = threading.Lock()
    told: dict[str, list[Outcome]] = {"up": [], "down": []}

    def write(name: str, order: list[str]) -> None:
        writer = PointWriter(world.database, turn=turn)
        for step in range(1, 16):
            group = [(attempt, batch(step, key=key)) for attempt in order for key in (f"{name}{step // 5}", "both")]
            told[name] += writer.write(group, NOW)

    threads = [threading.Thread(target=write, args=each) for each in (("up", attempts), ("down", attempts[::-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    outcomes = [one for each in told.values() for one in each if isinstance(one, Stored)]
    assert len(outcomes) == 2 * 15 * 3 * 2
    assert (sum(one.fresh for one in outcomes), len(stored(world))) == (3 * 15 * 3, 3 * 15 * 3)
    assert len({(one.job_pk, one.sequence) for one in outcomes}) == len(outcomes), "each has a place of its own"
