"""Expensive requests of one user are limited in number and wait in order."""

import asyncio
import threading
import time

import pytest

from service.api.user_slots import UserSlots


def test_one_user_runs_at_most_the_limit_at_once() -> None:
    slots, lock = UserSlots(limit=2), threading.Lock()
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
    slots, over = UserSlots(limit=1), threading.Event()

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
    slots = UserSlots(limit=1)

    async def requests() -> int:
        with pytest.raises(ZeroDivisionError):
            await slots.run("ada", lambda: 1 // 0)
        return await slots.run("ada", lambda: 7)

    assert asyncio.run(requests()) == 7
