"""Each owner uses a share of the threads, and further requests wait in order."""

import asyncio
import threading
import time
from contextvars import copy_context

import pytest

from service.core.errors import ServiceError
from service.core.thread_slots import SlotsTakenError, ThreadSlots, current_deadline


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


def test_owners_take_turns_whatever_the_number_of_their_requests() -> None:
    slots, order = ThreadSlots(each=1, total=1), []

    async def requests() -> None:
        async def one(owner: str) -> None:
            async with slots.slot(owner):
                order.append(owner)
                await asyncio.sleep(0)

        flood = [asyncio.create_task(one("ada")) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.gather(*flood, asyncio.create_task(one("bob")))

    asyncio.run(requests())
    assert order.index("bob") < 6
    assert len(order) == 51


def test_request_waits_for_a_slot_only_so_long() -> None:
    slots = ThreadSlots(each=1, total=2, wait_seconds=0.05)

    async def requests() -> list[bool]:
        taken = []
        async with slots.slot("ada"), slots.slot("bob"):
            for owner in ("ada", "cid"):
                with pytest.raises(SlotsTakenError) as caught:
                    await asyncio.wait_for(slots.run(owner, str), 10)
                taken.append(caught.value.is_own)
        assert await slots.run("ada", str) == ""
        return taken

    assert asyncio.run(requests()) == [True, False]
    with slots.hold("ada"), pytest.raises(SlotsTakenError):
        slots.call("ada", str)
    for _ in range(3):
        assert slots.call("ada", str) == "", "what waited in vain holds no slot"


def test_cancelled_request_leaves_its_slot_to_others() -> None:
    slots = ThreadSlots(each=1, total=1)

    async def requests() -> str:
        async with slots.slot("ada"):
            waiting = asyncio.create_task(slots.run("bob", str))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait((waiting,))
        return await asyncio.wait_for(slots.run("cid", lambda: "done"), 5)

    assert asyncio.run(requests()) == "done"


def test_thread_of_a_cancelled_request_holds_its_slot_until_it_ends() -> None:
    slots, started, over = ThreadSlots(each=1, total=1), threading.Event(), threading.Event()

    async def requests() -> str:
        running = asyncio.create_task(slots.run("ada", lambda: (started.set(), over.wait(10))))
        await asyncio.to_thread(started.wait, 10)
        running.cancel()
        waiting = asyncio.create_task(slots.run("bob", lambda: "done"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        over.set()
        await asyncio.wait((running,))
        assert running.cancelled()
        return await waiting

    assert asyncio.run(requests()) == "done"


def test_slot_that_ends_in_another_context_is_released() -> None:
    """As of a coroutine that nobody has ended: its remains run wherever they are collected."""
    slots = ThreadSlots(each=1, total=1, wait_seconds=0)
    held = slots.hold("ada")
    copy_context().run(held.__enter__)
    with pytest.raises(ValueError, match="different Context"):
        held.__exit__(None, None, None)
    assert slots.call("ada", lambda: "done") == "done"


def test_slots_are_shared_by_threads_and_event_loops() -> None:
    slots, held, release = ThreadSlots(each=1, total=1), threading.Event(), threading.Event()

    def occupy() -> None:
        with slots.hold("ada"):
            held.set()
            release.wait(10)

    occupied = threading.Thread(target=occupy)
    occupied.start()
    held.wait(10)

    async def requests() -> str:
        waiting = asyncio.create_task(slots.run("bob", lambda: "done"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        release.set()
        return await asyncio.wait_for(waiting, 10)

    try:
        assert asyncio.run(requests()) == "done"
    finally:
        release.set()
        occupied.join()


def test_call_that_hangs_uses_up_the_share_of_its_owner_alone() -> None:
    slots, over = ThreadSlots(each=1, total=2, seconds=0.05, wait_seconds=0), threading.Event()
    try:
        with pytest.raises(TimeoutError):
            slots.call("ada", over.wait, 30)
        with pytest.raises(SlotsTakenError):
            slots.call("ada", str)
        assert slots.call("bob", lambda: 7) == 7
    finally:
        over.set()


def test_work_that_takes_too_long_gets_an_error_with_a_remedy() -> None:
    for is_repeated, expected in ((False, (422, "too_expensive")), (True, (503, "database"))):
        with ThreadSlots(each=1, total=1, seconds=0, is_repeated=is_repeated).hold("ada") as deadline:
            assert current_deadline() is deadline
            with pytest.raises(ServiceError) as caught:
                deadline.check()
        assert (caught.value.status, caught.value.code) == expected
        assert is_repeated or "ask for less" in caught.value.message
    assert current_deadline() is None
