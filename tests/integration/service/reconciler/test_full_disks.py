"""An attempt that a full disk ended uses no retry, and the next one waits; each wait is twice as long as the last."""

import pytest

from service.reconciler.decide import MAX_DISK_WAITS
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

FULL = {"type": "OSError", "message": "[Errno 28] No space left on device: 'model.pt'", "rank": 0}


def end_on_full_disk(world: World, job: str) -> None:
    world.start(job).end("disk_full", failure=FULL)
    world.tick()


def attempts(world: World, job: str) -> int:
    return len(world.client.get(f"/v1/jobs/{job}/attempts").json()["data"])


@pytest.mark.fault_scenario(24)
def test_next_attempt_waits_and_uses_no_retry(world: World) -> None:
    job = world.submit(restart={"max_retries": 0})
    for number, minutes in ((1, 1), (2, 2), (3, 4)):
        end_on_full_disk(world, job)
        shown = world.job(job)
        assert (shown["status"], shown["error"]["message"]) == ("queued", FULL["message"])
        world.tick()
        assert world.job(job)["status_message"].startswith("Not submitted yet: a disk was full or read-only.")
        world.clock.advance(60 * minutes - 20)
        world.tick()
        assert attempts(world, job) == number
        world.clock.advance(20)
        world.tick()
        assert attempts(world, job) == number + 1


def test_waits_end_with_the_retries(world: World) -> None:
    job = world.submit(restart={"max_retries": 1})
    for _ in range(MAX_DISK_WAITS + 1):
        end_on_full_disk(world, job)
        assert world.status(job) == "queued"
        world.clock.advance(1800)
        world.tick()
    end_on_full_disk(world, job)
    assert (world.status(job), world.job(job)["status_reason"]) == ("failed", "disk_full")


def test_retry_of_a_user_does_not_wait(world: World) -> None:
    job = world.submit(restart={"max_retries": 0})
    end_on_full_disk(world, job)
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.tick()
    assert world.client.post(f"/v1/jobs/{job}/retry").status_code in (200, 202)
    world.tick()
    assert attempts(world, job) == 2


def test_other_ends_do_not_wait(world: World) -> None:
    job = world.submit(restart={"max_retries": 3})
    end_on_full_disk(world, job)
    world.clock.advance(60)
    world.tick()
    world.start(job).end("error", failure={"type": "ValueError", "message": "x", "rank": 0})
    world.tick()
    world.tick()
    assert attempts(world, job) == 3
