"""Live streams: every event once to everyone, whoever else watches and however often they come back."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from service.api.routes import streams as endpoints
from service.core.errors import TooManyRequestsError
from service.streaming import repository as live_repository
from service.streaming import subscription as following_module
from service.streaming.broadcaster import QUEUE, Hub, Item, Subscriber
from service.streaming.global_feed import WHOLE
from service.streaming.sources import JobNews
from service.streaming.subscription import Following
from tests.support.world import World

Event = tuple[str, str, Any]


def events_in(text: str) -> list[Event]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":") and ": " in line)
        if "data" in lines:
            found.append((lines.get("id", ""), lines["event"], json.loads(lines["data"])))
    return found


async def take(stream: AsyncIterator[str], enough: Callable[[list[Event]], bool]) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(20):
        async for text in stream:
            found += events_in(text)
            if enough(found):
                break
    return found


def of_job(world: World, job: str, **options: Any) -> Following:
    services = world.services
    news = JobNews(services.database, services.settings.runs, services.clock, job)
    return Following(services.hub, news, **{"logs": True, **options})


def values(found: list[Event]) -> list[float]:
    return [point["value"] for _, kind, data in found if kind == "metrics" for point in data["points"]]


def test_everyone_sees_what_comes_while_they_watch(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("a", 1, 1.0)])

    async def watch() -> list[list[Event]]:
        watchers = [of_job(world, job) for _ in range(3)]
        assert all([await watcher.start((0, 0)) for watcher in watchers])
        tasks = [
            asyncio.create_task(take(watcher.events(), lambda found: values(found) == [1.0, 2.0, 3.0]))
            for watcher in watchers
        ]
        for step in (2, 3):
            await asyncio.to_thread(worker.metrics, [("a", step, float(step))])
        return await asyncio.gather(*tasks)

    one, two, three = asyncio.run(watch())
    assert [event[0] for event in one] == [event[0] for event in two] == [event[0] for event in three]
    assert [int(event[0]) for event in one] == sorted({int(event[0]) for event in one})
    assert world.services.hub.open == 0


def test_of_the_logs_one_rank_alone(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.log("0", 0, b"zero\n")
    worker.log("1", 0, b"one\n")
    worker.end("completed")
    world.tick(3)
    text = world.client.get(f"/v1/jobs/{job}/stream?rank=1").text
    assert [data["text"] for _, kind, data in events_in(text) if kind == "log"] == ["one\n"]


def test_all_jobs_in_one_stream_with_ids_that_replay_exactly(world: World) -> None:
    async def watch() -> tuple[list[Event], list[list[Event]]]:
        services = world.services
        first = Following(services.hub, services.feed, logs=False)
        assert await first.start(None)
        jobs: list[str] = []

        def work() -> None:
            for _ in range(2):
                job = world.submit()
                worker = world.start(job)
                worker.metrics([("a", 1, 0.5)])
                worker.checkpoint(1)
                jobs.append(job)

        def complete(found: list[Event]) -> bool:
            kinds = [(data["job_id"], kind) for _, kind, data in found]
            return len(jobs) == 2 and all((job, kind) in kinds for job in jobs for kind in ("metrics", "checkpoint"))

        task = asyncio.create_task(take(first.events(), complete))
        await asyncio.to_thread(work)
        live = await task
        replays = []
        for event in live[:-1]:
            again = Following(services.hub, services.feed, logs=False)
            position, within = event[0].split("-")
            assert await again.start((int(position), int(within)))
            replays.append(await take(again.events(), lambda found: bool(found) and found[-1][0] == live[-1][0]))
        return live, replays

    live, replays = asyncio.run(watch())
    assert len({event[0] for event in live}) == len(live)
    for place, replay in enumerate(replays, 1):
        assert [event[:2] for event in replay] == [event[:2] for event in live[place:]]
    assert {kind for _, kind, _ in live} >= {"status", "event", "metrics", "checkpoint"}


def test_a_checkpoint_that_is_deleted_since_is_told_again_as_it_was(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    place, _ = world.services.feed.head()
    worker.checkpoint(1)

    async def first_checkpoint() -> Event:
        following = Following(world.services.hub, world.services.feed, logs=False)
        assert await following.start((place, WHOLE))
        found = await take(following.events(), lambda found: any(kind == "checkpoint" for _, kind, _ in found))
        return next(event for event in found if event[1] == "checkpoint")

    before = asyncio.run(first_checkpoint())
    worker.checkpoint(2, removed_steps=[1])
    assert [one["step"] for one in world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]] == [2]
    assert before[2]["step"] == 1
    assert asyncio.run(first_checkpoint()) == before
    worker.end("completed")
    world.tick(3)
    own = events_in(world.client.get(f"/v1/jobs/{job}/stream").text)
    assert [data["step"] for _, kind, data in own if kind == "checkpoint"] == [1, 2]


def begin(world: World, place: tuple[int, int]) -> list[str]:
    """The kinds of what the stream of all jobs tells first to who has seen this place."""

    async def watch() -> list[str]:
        following = Following(world.services.hub, world.services.feed, logs=False)
        assert await following.start(place)
        found = await take(following.events(), lambda found: bool(found))
        return [kind for _, kind, _ in found]

    return asyncio.run(watch())


def test_who_missed_more_than_is_kept_is_told_to_start_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_repository, "KEPT", 3)
    for _ in range(6):
        world.submit()
        newest, _ = world.services.feed.head()
    assert "reset" not in begin(world, (newest - 3, WHOLE)), "the next one is there still"
    assert begin(world, (newest - 3, 1))[0] == "reset", "the rest of this one is gone"
    assert begin(world, (newest - 4, WHOLE))[0] == "reset"


def test_who_has_seen_what_a_restored_database_never_told_starts_over(world: World) -> None:
    world.submit()
    newest, _ = world.services.feed.head()
    assert begin(world, (newest + 1000, 1)) == ["reset"]


def test_a_place_that_a_job_never_reached_begins_anew(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.end("completed")
    world.tick(3)
    whole, beyond = (
        events_in(world.client.get(f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": place}).text)
        for place in ("0", "1000")
    )
    assert whole
    assert beyond == whole
    ended = world.client.get(f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": whole[-1][0]})
    assert ended.status_code == 204


def test_what_is_no_place_in_the_stream_is_refused(world: World) -> None:
    for path, place in (("/v1/stream", "7"), ("/v1/stream", "1-x"), (f"/v1/jobs/{world.submit()}/stream", "1-2")):
        answer = world.client.get(path, headers={"Last-Event-ID": place})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "Last-Event-ID")


def test_too_many_streams_are_told_to_come_again(world: World) -> None:
    job = world.submit()
    world.services.hub = Hub(limit=1)

    async def watch() -> None:
        one = of_job(world, job)
        assert await one.start((0, 0))
        with pytest.raises(TooManyRequestsError):
            await of_job(world, job).start((0, 0))
        await asyncio.to_thread(world.services.hub.close)
        assert await take(one.events(), lambda _: False) != [], "what was missed is told before the end"

    asyncio.run(watch())
    assert world.services.hub.open == 0


def test_a_quiet_stream_shows_that_it_lives(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "HEARTBEAT_SECONDS", 0.02)
    job = world.submit()

    async def watch() -> None:
        one = of_job(world, job)
        assert await one.start((0, 0))
        async with asyncio.timeout(20):
            async for text in one.events():
                if text.startswith(":"):
                    return

    asyncio.run(watch())


def test_a_stream_ends_with_its_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(endpoints, "TOKEN_SECONDS", 0.0)
    made = world.client.post("/v1/tokens", json={"name": "eve"}).json()
    job, answers = world.submit(), []

    def listen() -> None:
        headers = {"Authorization": f"Bearer {made['token']}"}
        answers.append(world.client.get(f"/v1/jobs/{job}/stream", headers=headers).status_code)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    until = time.monotonic() + 20
    while not world.services.hub.open and time.monotonic() < until:
        time.sleep(0.01)
    assert world.client.delete(f"/v1/tokens/{made['id']}").status_code == 204
    listener.join(20)
    assert answers == [200]
    assert world.services.hub.open == 0


def test_a_slow_client_is_let_go_and_others_are_not() -> None:
    def items(first: int, last: int) -> list[Item]:
        return [Item((number, 0), f"id: {number}\n\n") for number in range(first, last)]

    async def watch() -> tuple[bool, bool, int]:
        slow, quick = (Subscriber(lambda _item: True, logs=False) for _ in range(2))
        for start in range(0, QUEUE * 3, 100):
            for one in (slow, quick):
                one.push(items(start, start + 100), over=False)
            quick.items.clear()
        return slow.closed, quick.closed, len(slow.items)

    assert asyncio.run(watch()) == (True, False, 0)
