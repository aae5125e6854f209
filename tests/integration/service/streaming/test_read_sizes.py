"""One read of a stream takes a bounded part of what a job has reported, and the parts together are everything."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from service.streaming.broadcaster import QUEUE_CHARS, Item, StreamOffset, Subscriber, Update
from service.streaming.sources import GlobalSource, JobSource
from service.streaming.subscription import Subscription
from tests.support.world import FakeWorker, World

pytestmark = pytest.mark.databases("sqlite")

CHUNK = b"\0" * 256 * 1024
MAX_CHARS = 8 * 1024 * 1024


@pytest.fixture
def worker(world: World) -> FakeWorker:
    return world.start(world.submit())


def job_source(world: World) -> JobSource:
    job = world.client.get("/v1/jobs").json()["data"][0]["id"]
    return JobSource(world.database, world.settings.runs, world.clock, job)


def reads(source: JobSource | GlobalSource) -> Iterator[Update]:
    offset, more = StreamOffset(0), True
    while more:
        update = source.read(offset, True)
        yield update
        offset, more = update.offset, update.more


def report_events(worker: FakeWorker, count: int) -> None:
    for number in range(count):
        event: dict[str, Any] = {"sequence": number, "type": "note", "message": "m", "time": "2026-01-01T00:00:00Z"}
        event["data"] = {"text": "\1" * 60_000}
        assert worker.post("events", {"execution": 1, "events": [event]}).status_code == 200


def numbers(updates: list[Update]) -> list[int]:
    """Return the number within the job of each `note` event."""
    texts = [item.text for update in updates for item in update.items if '"type":"worker.note"' in item.text]
    return [int(json.loads(text.split("data: ", 1)[1])["id"].removeprefix("evt_")) for text in texts]


def test_log_is_read_in_parts(world: World, worker: FakeWorker) -> None:
    for number in range(8):
        assert worker.log("0", number * len(CHUNK), CHUNK).status_code == 200
    updates = list(reads(job_source(world)))
    offsets = [json.loads(item.text.split("data: ", 1)[1])["offset"] for u in updates for item in u.items if item.rank]
    assert offsets == [number * len(CHUNK) for number in range(8)]
    assert max(sum(len(item.text) for item in update.items) for update in updates) < MAX_CHARS


def test_events_are_read_in_parts(world: World, worker: FakeWorker) -> None:
    report_events(worker, 40)
    updates = list(reads(job_source(world)))
    assert len(numbers(updates)) == 40
    assert max(sum(len(item.text) for item in update.items) for update in updates) < MAX_CHARS


def test_entries_of_all_jobs_are_read_in_parts(world: World, worker: FakeWorker) -> None:
    source = GlobalSource(world.database, world.settings.runs, world.clock)
    source.newest_offset()
    worker.metrics([("a", 1, 1.0)])
    report_events(worker, 40)
    worker.checkpoint(1)
    source.newest_offset()
    updates = list(reads(source))
    assert len(set(numbers(updates))) == len(numbers(updates)) == 40
    assert max(sum(len(item.text) for item in update.items) for update in updates) < MAX_CHARS
    kinds = [item.text.split("event: ", 1)[1].split("\n")[0] for update in updates for item in update.items]
    assert (kinds.count("metrics"), kinds.count("checkpoint")) == (1, 1)
    offsets = [item.offset for update in updates for item in update.items]
    assert offsets == sorted(set(offsets))


def test_messages_are_sent_in_parts(world: World, worker: FakeWorker) -> None:
    worker.log("0", 0, CHUNK)
    worker.end("completed")
    world.tick(3)

    async def longest() -> int:
        subscription = Subscription(world.app_state.broadcaster, job_source(world), logs=True)
        assert await subscription.start(StreamOffset(0))
        return max([len(text) async for text in subscription.events()])

    assert asyncio.run(longest()) < 7 * len(CHUNK)


def test_client_with_too_many_waiting_characters_is_disconnected() -> None:
    async def watch() -> tuple[bool, int]:
        slow = Subscriber(lambda _item: True, logs=False)
        for number in range(2):
            slow.push([Item(StreamOffset(number), "x" * (QUEUE_CHARS + 1))], finished=False)
        return slow.closed, len(slow.items)

    assert asyncio.run(watch()) == (True, 0)
