"""Storing of groups of batches: results, latest values, and concurrent writers."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from service.core.positions import positions
from service.db.raw import RawTransaction
from service.metrics.ingest.decode import PointBatch
from service.metrics.ingest.repository import InsertResult
from service.metrics.ingest.writer import Outcome, PointWriter
from tests.support.wait import wait_until
from tests.support.world import World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def batch(
    step: int, value: float = 1.0, *, execution: int = 1, key: str = "a", progress: dict[str, Any] | None = None
) -> PointBatch:
    return PointBatch(execution, 0, [(key, step, value, 0, 0, None)], progress)


def counts(outcomes: list[Outcome]) -> list[tuple[int, int]]:
    """Inserted points and duplicates of each batch."""
    return [(one.stored, one.duplicates) if isinstance(one, InsertResult) else (-1, -1) for one in outcomes]


def codes(outcomes: list[Outcome]) -> list[str | int]:
    """The error code or the number of inserted points of each batch."""
    return [one.stored if isinstance(one, InsertResult) else one.code for one in outcomes]


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


def test_group_stores_points_latest_values_and_progress(world: World, writer: PointWriter) -> None:
    jobs = [world.submit() for _ in range(2)]
    one, two = (world.start(job).attempt_id for job in jobs)
    writer.write([(one, batch(1)), (two, batch(1))], NOW)
    before = job_row(world, jobs[0])
    group = [(one, batch(2, progress={"step": 2})), (two, batch(2)), (one, batch(3, 7.0)), (one, batch(2))]
    outcomes = writer.write(group, LATER)
    assert counts(outcomes) == [(1, 0), (1, 0), (1, 0), (0, 1)]
    of_first = [outcomes[0], outcomes[2], outcomes[3]]
    assert [one.sequence for one in of_first if isinstance(one, InsertResult)] == [
        before.sequence + n for n in (1, 2, 3)
    ]
    after = job_row(world, jobs[0])
    assert after.sequence == before.sequence + 3
    assert after.latest == {"a": 7.0}
    assert after.progress == {"step": 2, "reported_at": LATER.isoformat()}
    assert after.updated_at > before.updated_at
    assert sorted(stored(world)) == [(1, 1, 1.0), (1, 1, 1.0), (1, 2, 1.0), (1, 2, 1.0), (1, 3, 7.0)]


def test_new_points_cost_one_statement_each_for_attempts_jobs_and_points(
    world: World, writer: PointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = world.start(world.submit()).attempt_id
    statements: list[str] = []
    execute = RawTransaction.execute

    def counting(transaction: RawTransaction, statement: str, values: Sequence[Any] = ()) -> Any:
        statements.append(statement.split(" ")[0])
        return execute(transaction, statement, values)

    def report(record: int, step: int) -> list[str]:
        statements.clear()
        rows = [
            ("a", one, 1.0, 0, 0, position)
            for one, position in zip(range(step, step + 10), positions(0, [(record, 10)]), strict=True)
        ]
        writer.write([(attempt, PointBatch(1, 0, rows))], NOW)
        return statements

    report(0, 0)
    monkeypatch.setattr(RawTransaction, "execute", counting)
    lock = [] if world.database.dialect == "sqlite" else ["SELECT"]
    insert = "INSERT" if world.database.dialect == "sqlite" else "WITH"
    assert report(1, 10) == [*lock, "SELECT", "UPDATE", insert]


def test_rejected_batch_does_not_affect_its_group(world: World, writer: PointWriter) -> None:
    attempts = [world.start(world.submit()).attempt_id for _ in range(2)]
    good, stale = batch(1), batch(1, execution=9)
    group = [(attempts[0], good), (attempts[1], stale), (attempts[1], good), ("0" * 16, good), (attempts[0], good)]
    assert codes(writer.write(group, NOW)) == [1, "stale_execution", 1, "attempt_not_found", 0]
    assert len(stored(world)) == 2


def test_batches_of_one_job_keep_their_order(world: World, writer: PointWriter) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id
    outcomes = writer.write([(attempt, batch(step, float(step))) for step in range(1, 6)], NOW)
    sequences = [getattr(outcome, "sequence", None) for outcome in outcomes]
    assert sequences == list(range(sequences[0], sequences[0] + 5))
    assert job_row(world, job).sequence == sequences[-1]


def test_progress_without_points_keeps_latest_values(world: World, writer: PointWriter) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id
    writer.write([(attempt, batch(1, 3.0))], NOW)
    assert counts(writer.write([(attempt, PointBatch(1, 0, [], {"step": 9}))], LATER)) == [(0, 0)]
    assert counts(writer.write([(attempt, batch(2, float("2")))], LATER)) == [(1, 0)]
    row = job_row(world, job)
    assert (row.latest, row.progress["step"]) == ({"a": 2.0}, 9)


def test_a_late_record_replaces_neither_the_latest_value_nor_the_progress(world: World, writer: PointWriter) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id

    def report(record: int, step: int, value: float, execution: int = 1) -> None:
        (position,) = positions(1, [(record, 1)])
        row = ("a", step, value, 0, 0, position)
        writer.write([(attempt, PointBatch(execution, 0, [row], {"step": step}, position=position))], NOW)

    def shown() -> tuple[dict[str, float], int]:
        row = job_row(world, job)
        return row.latest, row.progress["step"]

    report(7, 20, 2.0)
    report(5, 10, 1.0)
    assert shown() == ({"a": 2.0}, 20)
    report(6, 20, 1.5)
    assert shown() == ({"a": 2.0}, 20), "of one step, the value that was logged last stays"
    report(9, 20, 3.0)
    report(1, 5, 4.0, execution=2)
    assert shown() == ({"a": 4.0}, 5), "a new execution counts its records from the beginning"
    report(8, 30, 9.0)
    assert shown() == ({"a": 4.0}, 5)


def test_commit_notifies_downsampler_and_subscribers(world: World) -> None:
    results: list[InsertResult] = []
    changed_jobs: list[set[int]] = []
    writer = PointWriter(world.database, results.extend)
    attempt = world.start(world.submit()).attempt_id
    writer.write([(attempt, batch(1))], NOW)
    results.clear()
    world.database.after_commit.append(changed_jobs.append)
    writer.write([(attempt, batch(2)), (attempt, batch(2))], NOW)
    assert [result.stored for result in results] == [1, 0]
    assert changed_jobs == [{results[0].job_pk}]


def test_later_execution_reported_elsewhere_keeps_its_latest_values(world: World, writer: PointWriter) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id
    writer.write([(attempt, batch(1))], NOW)
    PointWriter(world.database).write([(attempt, batch(1, 5.0, execution=2))], NOW)
    assert counts(writer.write([(attempt, batch(2, 3.0))], LATER)) == [(1, 0)]
    assert job_row(world, job).latest == {"a": 5.0}, "execution 1 is over"


def test_deleted_attempt_is_rejected_although_cached(world: World, writer: PointWriter) -> None:
    deleted, present = (world.start(world.submit()).attempt_id for _ in range(2))
    writer.write([(deleted, batch(1)), (present, batch(1))], NOW)
    with world.database.write() as session:
        for statement in ("executions", "points", "job_keys"):
            no = "(SELECT job_pk FROM attempts WHERE id = :id)"
            session.execute(sa.text(f"DELETE FROM {statement} WHERE job_pk = {no}"), {"id": deleted})
        session.execute(sa.text("DELETE FROM attempts WHERE id = :id"), {"id": deleted})
    assert codes(writer.write([(deleted, batch(2)), (present, batch(2))], NOW)) == ["attempt_not_found", 1]


def test_writer_sees_changes_committed_while_it_waited_for_the_job(world: World, writer: PointWriter) -> None:
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
        wait_until(lambda: _is_blocked(world), 10, "the writer to wait for the job")
    thread.join(10)
    assert [one.sequence for one in outcomes if isinstance(one, InsertResult)] == [before + 6]
    assert job_row(world, job)[:2] == (before + 6, {"a": 9.0, "b": 4.0})


def _is_blocked(world: World) -> bool:
    with world.database.read() as session:
        blocked = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(session.scalar(sa.text(blocked)))


def test_two_attempts_of_one_job_share_its_sequence(world: World, writer: PointWriter) -> None:
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
    assert counts(writer.write([(second, batch(2, execution=5))], NOW)) == [(1, 0)]
    outcomes = writer.write([(first, batch(3)), (second, batch(4, execution=5))], NOW)
    assert counts(outcomes) == [(1, 0), (1, 0)]
    assert len({one.sequence for one in outcomes if isinstance(one, InsertResult)}) == 2


def test_two_services_store_points_of_the_same_jobs_once(world: World) -> None:
    attempts = [world.start(world.submit()).attempt_id for _ in range(3)]
    outcomes: dict[str, list[Outcome]] = {"up": [], "down": []}
    # Transactions that number new names in different orders can deadlock, which ends as a retry.
    PointWriter(world.database).write(
        [(one, batch(0, key=key)) for one in attempts for key in ("up", "down", "b")], NOW
    )

    def write(name: str, order: list[str]) -> None:
        writer = PointWriter(world.database)
        for step in range(1, 16):
            outcomes[name] += writer.write(
                [(attempt, batch(step, key=key)) for attempt in order for key in (name, "b")], NOW
            )

    threads = [threading.Thread(target=write, args=each) for each in (("up", attempts), ("down", attempts[::-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    results = [one for each in outcomes.values() for one in each if isinstance(one, InsertResult)]
    assert len(results) == 2 * 15 * 3 * 2
    assert (sum(one.stored for one in results), len(stored(world))) == (3 * 15 * 3, 3 * 15 * 3 + 9)
    assert len({(one.job_pk, one.sequence) for one in results}) == len(results), "every batch has its own number"
