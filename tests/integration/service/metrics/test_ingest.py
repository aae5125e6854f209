"""Ingest under stress: bounded, whole or not at all, and always with an answer that says what to do."""

import asyncio
import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from service.core.errors import TooManyRequestsError, UnavailableError
from service.metrics.ingest import batch_queue as queue_module
from service.metrics.ingest import writer as writing
from service.metrics.ingest.batch_queue import IngestQueue
from service.metrics.ingest.decoding import PointBatch
from service.metrics.ingest.outcome import Stored
from service.metrics.ingest.writer import PointWriter
from tests.support.world import World

POINTS = b'{"execution":1,"resumed_from_step":0,"points":[%s]}'


def stored(world: World) -> int:
    with world.database.read() as session:
        return session.scalar(sa.text("SELECT COUNT(*) FROM points")) or 0


def test_duplicates_are_counted(world: World) -> None:
    worker = world.start(world.submit())
    worker.metrics([("a", 1, 1.0), ("a", 2, 1.0)])
    told = worker.metrics([("a", 2, 5.0), ("a", 3, 1.0), ("a", 3, 2.0)])
    assert told.json() == {"accepted": 1, "duplicates": 2}


def test_case_17_more_names_than_a_job_may_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_KEYS", 20)
    job = world.submit()
    worker = world.start(job)
    assert worker.metrics([(f"k{n}", 1, 1.0) for n in range(20)]).status_code == 200
    refused = worker.metrics([("k1", 2, 1.0), ("one more", 2, 1.0)])
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "too_many_keys")
    assert stored(world) == 20
    assert worker.metrics([("k1", 2, 1.0)]).status_code == 200
    other = world.start(world.submit())
    assert other.metrics([("one more", 1, 1.0)]).status_code == 200, "the cap is each job's own"


def test_a_refused_batch_does_not_harm_its_group(world: World) -> None:
    attempts = [world.start(world.submit()).attempt_id for _ in range(2)]
    good = PointBatch(1, 0, [("a", 1, 1.0, 0, 0)])
    stale = PointBatch(9, 0, [("a", 1, 1.0, 0, 0)])
    group = [(attempts[0], good), (attempts[1], stale), (attempts[1], good), ("0" * 16, good), (attempts[0], good)]
    outcomes = PointWriter(world.database).write(group, datetime(2026, 1, 1, tzinfo=UTC))
    codes = [getattr(outcome, "code", (getattr(outcome, "fresh", 0))) for outcome in outcomes]
    assert codes == [1, "stale_execution", 1, "attempt_not_found", 0]
    assert stored(world) == 2


def test_batches_of_one_job_keep_their_order(world: World) -> None:
    job = world.submit()
    attempt = world.start(job).attempt_id
    group = [(attempt, PointBatch(1, 0, [("a", step, float(step), 0, 0)])) for step in range(1, 6)]
    outcomes = PointWriter(world.database).write(group, datetime(2026, 1, 1, tzinfo=UTC))
    sequences = [getattr(outcome, "sequence", None) for outcome in outcomes]
    assert sequences == list(range(sequences[0], sequences[0] + 5))
    with world.database.read() as session:
        assert session.scalar(sa.text("SELECT sequence FROM jobs WHERE id = :id"), {"id": job}) == sequences[-1]


class Stuck:
    """A writer that waits until it is let go, or fails."""

    known_keys: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, error: Exception | None = None):
        self.entered = threading.Event()
        self.go = threading.Event()
        self.error = error
        self.groups: list[list[str]] = []

    def write(self, group: Any, _now: datetime) -> Any:
        self.groups.append([name for name, _ in group])
        self.entered.set()
        self.go.wait(10)
        if self.error:
            raise self.error
        return [Stored(1, 0, 1, "job", 1) for _ in group]


BATCH = PointBatch(1, 0, [("a", 1, 1.0, 0, 0)])


@pytest.mark.parametrize("sizes", [[900], [450, 450]], ids=["one", "two"])
def test_a_full_line_says_come_again_and_what_is_being_written_counts(sizes: list[int]) -> None:
    async def fill() -> None:
        writer = Stuck()
        queue = IngestQueue([writer], lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[arg-type]
        waiting = [asyncio.create_task(queue.put("a", BATCH, size)) for size in sizes]
        await asyncio.to_thread(writer.entered.wait, 10)
        with pytest.raises(TooManyRequestsError):
            await queue.put("a", BATCH, 450)
        writer.go.set()
        assert [one.fresh for one in await asyncio.gather(*waiting)] == [1] * len(sizes)
        assert (await queue.put("a", BATCH, 450)).fresh == 1, "there is room again"

    asyncio.run(fill())


def test_who_is_answered_together_is_written_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "GATHER_SECONDS", 5.0)

    async def put() -> None:
        writer = Stuck()
        queue = IngestQueue([writer], lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[arg-type]
        first = asyncio.create_task(queue.put("a", BATCH, 1))
        await asyncio.to_thread(writer.entered.wait, 10)
        others = [asyncio.create_task(queue.put(name, BATCH, 1)) for name in "bc"]
        await asyncio.sleep(0.5)  # writing takes so long, and so does the patience afterwards
        writer.go.set()
        await first
        await asyncio.gather(queue.put("a", BATCH, 1), *others)
        assert writer.groups == [["a"], ["b", "c", "a"]]
        await queue.put("a", BATCH, 1)
        assert writer.groups[2:] == [["a"]], "nobody is waited for long"

    asyncio.run(put())


LARGE = PointBatch(1, 0, [("a", 1, 1.0, 0, 0)] * 1000)


async def enter(queue: IngestQueue, names: str, batch: PointBatch) -> list["asyncio.Task[Stored]"]:
    """In this order."""
    tasks = [asyncio.create_task(queue.put(name, batch, 1)) for name in names]
    await asyncio.sleep(0)
    return tasks


def test_a_second_writer_takes_what_is_too_much_to_wait() -> None:
    async def put() -> None:
        one, two = Stuck(), Stuck()
        queue = IngestQueue([one, two], lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[list-item]
        waiting = await enter(queue, "a", LARGE)
        await asyncio.to_thread(one.entered.wait, 10)
        waiting += await enter(queue, "bc", LARGE)
        assert not two.groups, "two batches can wait"
        waiting += await enter(queue, "d", LARGE)
        assert await asyncio.to_thread(two.entered.wait, 10)
        two.go.set()
        assert [done.fresh for done in await asyncio.gather(*waiting[1:])] == [1] * 3
        assert (one.groups, two.groups) == ([["a"]], [["b", "c", "d"]])
        one.go.set()
        await waiting[0]

    asyncio.run(put())


def test_small_batches_are_left_to_one_writer() -> None:
    async def put() -> None:
        one, two = Stuck(), Stuck()
        queue = IngestQueue([one, two], lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[list-item]
        waiting = await enter(queue, "a", BATCH)
        await asyncio.to_thread(one.entered.wait, 10)
        waiting += await enter(queue, "bcdefghi", BATCH)
        one.go.set()
        await asyncio.gather(*waiting)
        assert (one.groups, two.groups) == ([["a"], list("bcdefghi")], [])

    asyncio.run(put())


@pytest.mark.parametrize("seconds", [20.0, 0.01], ids=["at first", "for ever"])
def test_a_small_group_waits_for_a_large_one_but_not_long(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "PATIENCE_SECONDS", seconds)

    async def put() -> None:
        one, two = Stuck(), Stuck()
        queue = IngestQueue([one, two], lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[list-item]
        waiting = await enter(queue, "a", LARGE)
        await asyncio.to_thread(one.entered.wait, 10)
        waiting += await enter(queue, "bcd", LARGE)
        await asyncio.to_thread(two.entered.wait, 10)
        one.go.set()
        await waiting[0]
        waiting += await enter(queue, "ef", LARGE)
        done, _ = await asyncio.wait(waiting[-2:], timeout=0.3 if seconds > 1 else 10)
        assert len(done) == (0 if seconds > 1 else 2), "the others are being written all the time"
        two.go.set()
        await asyncio.gather(*waiting)
        assert (one.groups, two.groups) == ([["a"], ["e", "f"]], [["b", "c", "d"]])

    asyncio.run(put())


def test_without_the_database_every_batch_is_answered_503() -> None:
    async def put() -> None:
        writer = Stuck(UnavailableError("the database does not answer", code="database"))
        writer.go.set()
        queue = IngestQueue([writer], lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[arg-type]
        found = await asyncio.gather(*(queue.put("a", BATCH, 1) for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in found] == [UnavailableError] * 3

    asyncio.run(put())


def test_the_thread_survives_a_bug_and_an_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "IDLE_SECONDS", 0.01)

    async def put() -> None:
        writer = Stuck(ZeroDivisionError())
        writer.go.set()
        queue = IngestQueue([writer], lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            await queue.put("a", BATCH, 1)
        writer.error = None
        for _ in range(3):
            assert (await queue.put("a", BATCH, 1)).fresh == 1
            await asyncio.to_thread(_until_idle, queue)

    def _until_idle(queue: IngestQueue) -> None:
        from tests.support.wait import wait_until

        wait_until(lambda: not queue._running)

    asyncio.run(put())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 200_000, 422),
        (b'{"execution":1,"resumed_from_step":0,"points":' + b"[" * 200_000, 422),
        (b'{"a":' * 100_000, 422),
        (b"\xff\xfe", 422),
        (b"", 422),
        (b'{"execution":1,"resumed_from_step":0,"points":[],"points":[]}', 200),
        (POINTS % b'{"key":"a","step":1,"value":1e400,"time":"2026-01-01T00:00:00Z"}', (200, 422)),
        (POINTS % b'{"key":"a","step":1,"value":1,"time":"2026-01-01T00:00:00"}', 422),
        (POINTS % b",".join([b"{}"] * 1001), 422),
        (b'{"pad":"' + b"x" * 1_100_000 + b'"}', 413),
    ],
)  # fmt: skip
def test_hostile_bodies_get_an_answer(world: World, body: bytes, status: Any) -> None:
    worker = world.start(world.submit())
    headers = {"Content-Type": "application/json"}
    answer = worker.client.post(f"/v1/attempts/{worker.attempt_id}/metrics", content=body, headers=headers)
    assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text[:200]
    assert json.loads(answer.text)
    assert answer.status_code == 200 or stored(world) == 0


def test_a_token_of_another_attempt_or_of_a_person_is_refused(world: World) -> None:
    one, two = (world.start(world.submit()) for _ in range(2))
    body = {"execution": 1, "resumed_from_step": 0, "points": []}
    path = f"/v1/attempts/{two.attempt_id}/metrics"
    assert one.client.post(path, json=body).status_code == 403
    assert world.client.post(path, json=body).status_code == 403
    assert world.new_client(None).post(path, json=body).status_code == 401
    assert two.client.post(path, json=body).status_code == 200
