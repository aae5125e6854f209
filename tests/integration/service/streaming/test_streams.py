"""Live streams: every subscriber receives each event exactly once."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from service.api.routes import streams as routes
from service.core.errors import TooManyRequestsError
from service.streaming import repository as streaming_repository
from service.streaming import subscription as subscription_module
from service.streaming.broadcaster import QUEUE, Broadcaster, Item, StreamOffset, Subscriber
from service.streaming.global_feed import END_OF_ENTRY
from service.streaming.sources import JobSource
from service.streaming.subscription import Subscription
from tests.support.world import World

Event = tuple[str, str, Any]


def events_in(text: str) -> list[Event]:
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":") and ": " in line)
        if "data" in lines:
            events.append((lines.get("id", ""), lines["event"], json.loads(lines["data"])))
    return events


async def collect(stream: AsyncIterator[str], enough: Callable[[list[Event]], bool]) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(20):
        async for text in stream:
            events += events_in(text)
            if enough(events):
                break
    return events


def of_job(world: World, job: str, **options: Any) -> Subscription:
    app_state = world.app_state
    source = JobSource(app_state.database, app_state.settings.runs, app_state.clock, job)
    return Subscription(app_state.broadcaster, source, **{"logs": True, **options})


def values(events: list[Event]) -> list[float]:
    return [point["value"] for _, kind, data in events if kind == "metrics" for point in data["points"]]


def test_all_subscribers_receive_new_events(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("a", 1, 1.0)])

    async def watch() -> list[list[Event]]:
        watchers = [of_job(world, job) for _ in range(3)]
        assert all([await watcher.start(StreamOffset(0)) for watcher in watchers])
        tasks = [
            asyncio.create_task(collect(watcher.events(), lambda events: values(events) == [1.0, 2.0, 3.0]))
            for watcher in watchers
        ]
        for step in (2, 3):
            await asyncio.to_thread(worker.metrics, [("a", step, float(step))])
        return await asyncio.gather(*tasks)

    one, two, three = asyncio.run(watch())
    assert [event[0] for event in one] == [event[0] for event in two] == [event[0] for event in three]
    assert [int(event[0]) for event in one] == sorted({int(event[0]) for event in one})
    assert world.app_state.broadcaster.open_streams == 0


def test_rank_parameter_filters_log_lines(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.log("0", 0, b"zero\n")
    worker.log("1", 0, b"one\n")
    worker.end("completed")
    world.tick(3)
    text = world.client.get(f"/v1/jobs/{job}/stream?rank=1").text
    assert [data["text"] for _, kind, data in events_in(text) if kind == "log"] == ["one\n"]


def test_global_stream_replays_exactly_from_each_event_id(world: World) -> None:
    async def watch() -> tuple[list[Event], list[list[Event]]]:
        app_state = world.app_state
        first = Subscription(app_state.broadcaster, app_state.global_source, logs=False)
        assert await first.start(None)
        jobs: list[str] = []

        def work() -> None:
            for _ in range(2):
                job = world.submit()
                worker = world.start(job)
                worker.metrics([("a", 1, 0.5)])
                worker.checkpoint(1)
                jobs.append(job)

        def complete(events: list[Event]) -> bool:
            kinds = [(data["job_id"], kind) for _, kind, data in events]
            return len(jobs) == 2 and all((job, kind) in kinds for job in jobs for kind in ("metrics", "checkpoint"))

        task = asyncio.create_task(collect(first.events(), complete))
        await asyncio.to_thread(work)
        live = await task
        replays = []
        for event in live[:-1]:
            again = Subscription(app_state.broadcaster, app_state.global_source, logs=False)
            position, within = event[0].split("-")
            assert await again.start(StreamOffset(int(position), int(within)))
            replays.append(await collect(again.events(), lambda events: bool(events) and events[-1][0] == live[-1][0]))
        return live, replays

    live, replays = asyncio.run(watch())
    assert len({event[0] for event in live}) == len(live)
    for index, replay in enumerate(replays, 1):
        assert [event[:2] for event in replay] == [event[:2] for event in live[index:]]
    assert {kind for _, kind, _ in live} >= {"status", "event", "metrics", "checkpoint"}


def test_replay_includes_deleted_checkpoints_unchanged(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    position, _ = world.app_state.global_source.newest_offset()
    worker.checkpoint(1)

    async def first_checkpoint() -> Event:
        subscription = Subscription(world.app_state.broadcaster, world.app_state.global_source, logs=False)
        assert await subscription.start(StreamOffset(position, END_OF_ENTRY))
        events = await collect(subscription.events(), lambda events: any(kind == "checkpoint" for _, kind, _ in events))
        return next(event for event in events if event[1] == "checkpoint")

    before = asyncio.run(first_checkpoint())
    worker.checkpoint(2, removed_steps=[1])
    assert [one["step"] for one in world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]] == [2]
    assert before[2]["step"] == 1
    assert asyncio.run(first_checkpoint()) == before
    worker.end("completed")
    world.tick(3)
    own = events_in(world.client.get(f"/v1/jobs/{job}/stream").text)
    assert [data["step"] for _, kind, data in own if kind == "checkpoint"] == [1, 2]


def first_event_types(world: World, *offset: int) -> list[str]:
    """Return the types of the first events in the stream of all jobs after an offset."""

    async def watch() -> list[str]:
        subscription = Subscription(world.app_state.broadcaster, world.app_state.global_source, logs=False)
        assert await subscription.start(StreamOffset(*offset))
        events = await collect(subscription.events(), lambda events: bool(events))
        return [kind for _, kind, _ in events]

    return asyncio.run(watch())


def test_trimmed_offset_starts_with_a_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_repository, "MAX_ENTRIES", 3)
    for _ in range(6):
        world.submit()
        newest, _ = world.app_state.global_source.newest_offset()
    assert "reset" not in first_event_types(world, newest - 3, END_OF_ENTRY), "the next entry is still stored"
    assert first_event_types(world, newest - 3, 1)[0] == "reset", "the rest of this entry is trimmed"
    assert first_event_types(world, newest - 4, END_OF_ENTRY)[0] == "reset"


def test_offset_beyond_a_restored_database_gets_a_reset(world: World) -> None:
    world.submit()
    newest, _ = world.app_state.global_source.newest_offset()
    assert first_event_types(world, newest + 1000, 1) == ["reset"]


def test_event_id_beyond_the_job_restarts_its_stream(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.end("completed")
    world.tick(3)
    whole, beyond = (
        events_in(world.client.get(f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": event_id}).text)
        for event_id in ("0", "1000")
    )
    assert whole
    assert beyond == whole
    ended = world.client.get(f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": whole[-1][0]})
    assert ended.status_code == 204


def test_malformed_event_id_is_rejected(world: World) -> None:
    for path, event_id in (("/v1/stream", "7"), ("/v1/stream", "1-x"), (f"/v1/jobs/{world.submit()}/stream", "1-2")):
        answer = world.client.get(path, headers={"Last-Event-ID": event_id})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "Last-Event-ID")


def test_too_many_open_streams_are_rejected(world: World) -> None:
    job = world.submit()
    world.app_state.broadcaster = Broadcaster(limit=1)

    async def watch() -> None:
        one = of_job(world, job)
        assert await one.start(StreamOffset(0))
        with pytest.raises(TooManyRequestsError):
            await of_job(world, job).start(StreamOffset(0))
        await asyncio.to_thread(world.app_state.broadcaster.close)
        assert await collect(one.events(), lambda _: False) != [], "missed events are sent before the end"

    asyncio.run(watch())
    assert world.app_state.broadcaster.open_streams == 0


def test_idle_stream_sends_keep_alive_comments(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "KEEP_ALIVE_SECONDS", 0.02)
    job = world.submit()

    async def watch() -> None:
        one = of_job(world, job)
        assert await one.start(StreamOffset(0))
        async with asyncio.timeout(20):
            async for text in one.events():
                if text.startswith(":"):
                    return

    asyncio.run(watch())


def test_stream_ends_when_its_token_is_revoked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "KEEP_ALIVE_SECONDS", 0.02)
    monkeypatch.setattr(routes, "TOKEN_CHECK_SECONDS", 0.0)
    made = world.client.post("/v1/tokens", json={"name": "eve"}).json()
    job, answers = world.submit(), []

    def listen() -> None:
        headers = {"Authorization": f"Bearer {made['token']}"}
        answers.append(world.client.get(f"/v1/jobs/{job}/stream", headers=headers).status_code)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    until = time.monotonic() + 20
    while not world.app_state.broadcaster.open_streams and time.monotonic() < until:
        time.sleep(0.01)
    assert world.client.delete(f"/v1/tokens/{made['id']}").status_code == 204
    listener.join(20)
    assert answers == [200]
    assert world.app_state.broadcaster.open_streams == 0


def test_slow_client_is_disconnected_without_affecting_others() -> None:
    def items(first: int, last: int) -> list[Item]:
        return [Item(StreamOffset(number), f"id: {number}\n\n") for number in range(first, last)]

    async def watch() -> tuple[bool, bool, int]:
        slow, quick = (Subscriber(lambda _item: True, logs=False) for _ in range(2))
        for start in range(0, QUEUE * 3, 100):
            for one in (slow, quick):
                one.push(items(start, start + 100), finished=False)
            quick.items.clear()
        return slow.closed, quick.closed, len(slow.items)

    assert asyncio.run(watch()) == (True, False, 0)


def test_one_user_has_a_share_of_the_streams(world: World) -> None:
    source, broadcaster = world.app_state.global_source, Broadcaster(limit=5, owner_limit=2)

    async def watch() -> None:
        subscriptions = [Subscription(broadcaster, source, logs=False, owner="ada") for _ in range(3)]
        for subscription in subscriptions[:2]:
            assert await subscription.start(None)
        with pytest.raises(TooManyRequestsError):
            await subscriptions[2].start(None)
        assert await Subscription(broadcaster, source, logs=False, owner="bob").start(None)
        stream = subscriptions[0].events()
        await anext(stream)
        await stream.aclose()
        assert await subscriptions[2].start(None)

    asyncio.run(watch())
