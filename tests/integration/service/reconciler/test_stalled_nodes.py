"""The node of a rank that stalls a run twice is excluded from the next attempt."""

import pytest

from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def stall(world: World, job: str, host: str) -> None:
    worker = world.start(job)
    failure = {"type": "Stalled", "message": "no rank made progress", "rank": 1, "host": host}
    worker.end("stalled", failure=failure)
    world.tick()
    assert world.status(job) == "queued"


def excluded(world: World, job: str) -> list[str]:
    events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
    return [event["data"]["node"] for event in events if event["type"] == "node_excluded"]


def test_the_second_stall_of_a_node_excludes_it(world: World) -> None:
    job = world.submit(restart={"max_retries": 5})
    for host, expected in (("node2", []), ("node3", []), ("node2", ["node2"])):
        stall(world, job, host)
        world.tick()
        assert excluded(world, job) == expected
