"""`/livez` needs no thread: it responds while requests occupy all of them."""

import asyncio
import threading

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter, run_sync

from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def test_livez_responds_while_every_thread_is_occupied(world: World) -> None:
    released = threading.Event()

    async def status_of_livez() -> int:
        limiter = current_default_thread_limiter()
        limiter.total_tokens = 1
        occupied = asyncio.create_task(run_sync(released.wait, 60))
        while not limiter.borrowed_tokens:
            await asyncio.sleep(0)
        try:
            transport = httpx.ASGITransport(world.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                answer = await asyncio.wait_for(client.get("/livez"), 10)
                return answer.status_code
        finally:
            released.set()
            await occupied

    assert asyncio.run(status_of_livez()) == 200
