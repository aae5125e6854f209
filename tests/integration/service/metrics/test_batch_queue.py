"""The ingest queue: limited in bytes, written in groups, and every batch gets an answer."""

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from service.core.errors import TooManyRequestsError, UnavailableError
from service.metrics.ingest import batch_queue
from service.metrics.ingest.batch_queue import IngestQueue
from service.metrics.ingest.decode import PointBatch
from service.metrics.ingest.repository import InsertResult
from tests.support.wait import wait_until

BATCH = PointBatch(1, 0, [("a", 1, 1.0, 0, 0, None)])


class BlockedWriter:
    """Writes nothing until `go` is set, then succeeds or raises `error`."""

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
        return [InsertResult(1, 0, 1, "job", 1) for _ in group]


def make_queue(writer: BlockedWriter) -> IngestQueue:
    return IngestQueue(writer, lambda: datetime.now(UTC), limit_bytes=1000)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [[900], [450, 450]], ids=["one", "two"])
def test_full_queue_rejects_and_counts_batches_being_written(sizes: list[int]) -> None:
    async def fill() -> None:
        writer = BlockedWriter()
        queue = make_queue(writer)
        waiting = [
            asyncio.create_task(queue.submit(name, BATCH, size)) for name, size in zip("ab", sizes, strict=False)
        ]
        await asyncio.to_thread(writer.entered.wait, 10)
        with pytest.raises(TooManyRequestsError):
            await queue.submit("c", BATCH, 450)
        writer.go.set()
        assert [result.stored for result in await asyncio.gather(*waiting)] == [1] * len(sizes)
        assert (await queue.submit("a", BATCH, 450)).stored == 1, "there is room again"

    asyncio.run(fill())


def test_one_attempt_leaves_half_of_the_queue_to_others() -> None:
    async def fill() -> None:
        writer = BlockedWriter()
        queue = make_queue(writer)
        waiting = [asyncio.create_task(queue.submit("a", BATCH, 400))]
        await asyncio.to_thread(writer.entered.wait, 10)
        with pytest.raises(TooManyRequestsError, match="of this attempt"):
            await queue.submit("a", BATCH, 400)
        waiting.append(asyncio.create_task(queue.submit("b", BATCH, 400)))
        await asyncio.sleep(0)
        writer.go.set()
        assert [result.stored for result in await asyncio.gather(*waiting)] == [1, 1]
        assert (await queue.submit("a", BATCH, 400)).stored == 1, "its batches are written"

    asyncio.run(fill())


def test_batches_answered_together_are_written_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "LINGER_SECONDS", 5.0)

    async def submit() -> None:
        writer = BlockedWriter()
        queue = make_queue(writer)
        first = asyncio.create_task(queue.submit("a", BATCH, 1))
        await asyncio.to_thread(writer.entered.wait, 10)
        others = [asyncio.create_task(queue.submit(name, BATCH, 1)) for name in "bc"]
        await asyncio.sleep(0.5)  # the duration of the write, and so of the linger after it
        writer.go.set()
        await first
        await asyncio.gather(queue.submit("a", BATCH, 1), *others)
        assert writer.groups == [["a"], ["b", "c", "a"]]
        await queue.submit("a", BATCH, 1)
        assert writer.groups[2:] == [["a"]], "the linger is short"

    asyncio.run(submit())


def test_batches_queued_during_a_write_form_one_group() -> None:
    async def submit() -> None:
        writer = BlockedWriter()
        queue = make_queue(writer)
        waiting = [asyncio.create_task(queue.submit("a", BATCH, 1))]
        await asyncio.to_thread(writer.entered.wait, 10)
        waiting += [asyncio.create_task(queue.submit(name, BATCH, 1)) for name in "bcdefghi"]
        await asyncio.sleep(0)
        writer.go.set()
        await asyncio.gather(*waiting)
        assert writer.groups == [["a"], list("bcdefghi")]

    asyncio.run(submit())


def test_group_ends_once_it_has_enough_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "GROUP_POINTS", 3)

    async def submit() -> None:
        writer = BlockedWriter()
        queue = make_queue(writer)
        waiting = [asyncio.create_task(queue.submit("a", BATCH, 1))]
        await asyncio.to_thread(writer.entered.wait, 10)
        waiting += [asyncio.create_task(queue.submit(name, BATCH, 1)) for name in "bcdef"]
        await asyncio.sleep(0)
        writer.go.set()
        await asyncio.gather(*waiting)
        assert writer.groups == [["a"], ["b", "c", "d"], ["e", "f"]]

    asyncio.run(submit())


def test_without_database_every_batch_gets_unavailable_error() -> None:
    async def submit() -> None:
        writer = BlockedWriter(UnavailableError("the database does not answer", code="database"))
        writer.go.set()
        queue = make_queue(writer)
        results = await asyncio.gather(*(queue.submit("a", BATCH, 1) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [UnavailableError] * 3

    asyncio.run(submit())


def test_writer_thread_survives_bugs_and_idle_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "IDLE_SECONDS", 0.01)

    async def submit() -> None:
        writer = BlockedWriter(ZeroDivisionError())
        writer.go.set()
        queue = make_queue(writer)
        with pytest.raises(UnavailableError):
            await queue.submit("a", BATCH, 1)
        writer.error = None
        for _ in range(3):
            assert (await queue.submit("a", BATCH, 1)).stored == 1
            await asyncio.to_thread(wait_until, lambda: not queue._running)

    asyncio.run(submit())
