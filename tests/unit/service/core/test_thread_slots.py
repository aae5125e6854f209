"""Each owner uses a share of the threads, and further requests wait in order."""

import asyncio
import threading
import time

import pytest

from service.core.thread_slots import ThreadSlots


def test_one_user_runs_at_most_the_limit_at_once() -> None:
    slots, lock = ThreadSlots(each=2, total=9), threading.Lock()
    running, peak = 0, 0

    def work() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    async def all_requests() -> None:
        await asyncio.gather(*(slots.run("ada", work) for _ in range(8)))

    asyncio.run(all_requests())
    assert peak == 2


def test_other_users_do_not_wait() -> None:
    slots, over = ThreadSlots(each=1, total=9), threading.Event()

    async def requests() -> str:
        first = asyncio.create_task(slots.run("ada", over.wait))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            answer = await slots.run("bob", lambda: "done")
        over.set()
        await first
        return answer

    assert asyncio.run(requests()) == "done"


def test_slot_is_released_after_an_error() -> None:
    slots = ThreadSlots(each=1, total=9)

    async def requests() -> int:
        with pytest.raises(ZeroDivisionError):
            await slots.run("ada", lambda: 1 // 0)
        return await slots.run("ada", lambda: 7)

    assert asyncio.run(requests()) == 7


def test_all_owners_together_use_at_most_the_total() -> None:
    slots, over = ThreadSlots(each=2, total=3), threading.Event()
    running, lock = 0, threading.Lock()

    def work() -> int:
        nonlocal running
        with lock:
            running += 1
            count = running
            if count == 3:
                over.set()
        over.wait(5)
        with lock:
            running -= 1
        return count

    async def all_requests() -> list[int]:
        return await asyncio.gather(*(slots.run(owner, work) for owner in ("ada", "bob", "cid") for _ in range(3)))

    assert max(asyncio.run(all_requests())) == 3


def test_event_loops_do_not_wait_for_each_other() -> None:
    slots = ThreadSlots(each=1, total=1)
    release = threading.Event()

    def occupy() -> None:
        asyncio.run(slots.run("ada", release.wait, 30.0))

    occupied = threading.Thread(target=occupy)
    occupied.start()
    try:
        assert asyncio.run(asyncio.wait_for(slots.run("ada", str), 10)) == ""
    finally:
        release.set()
        occupied.join()
