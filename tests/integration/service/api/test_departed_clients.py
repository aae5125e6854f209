"""Work that nobody waits for is not done."""

import asyncio
import threading
from typing import Any

import pytest
import structlog

from service.api.routes import jobs as job_routes
from service.core.thread_slots import ThreadSlots
from tests.integration.service.db.test_deadlines import run_slow_query
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


async def request(world: World, path: str, gone: asyncio.Event, method: str = "GET") -> int:
    """Send a request whose client disconnects when the event is set, a POST within its body; return the status."""
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {world.token}".encode())]
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "http_version": "1.1", "method": method, "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"client": ("127.0.0.1", 1), "server": ("localhost", 80)}
    complete, status = False, 0

    async def receive() -> dict[str, Any]:
        nonlocal complete
        if complete:
            await gone.wait()
        complete = True
        # As uvicorn does, a disconnect precedes a body that was not read.
        if gone.is_set():
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"{", "more_body": method == "POST"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    await world.app(scope, receive, send)
    return status


def test_queued_request_of_a_departed_client_is_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started, over, calls = threading.Event(), threading.Event(), 0
    list_table = job_routes.list_table

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        started.set()
        assert over.wait(10)
        return list_table(*arguments)

    monkeypatch.setattr(job_routes, "list_table", counted)
    monkeypatch.setattr(world.app_state, "user_slots", ThreadSlots(each=1, total=1))

    async def requests() -> None:
        present, gone = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(request(world, "/v1/jobs", present))
        assert await asyncio.to_thread(started.wait, 10)
        others = [asyncio.create_task(request(world, "/v1/jobs", gone)) for _ in range(5)]
        gone.set()
        over.set()
        await asyncio.gather(first, *others)

    asyncio.run(requests())
    assert calls == 1


def test_running_query_of_a_departed_client_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    def slow(*_arguments: Any) -> Any:
        started.set()
        return run_slow_query(world)

    monkeypatch.setattr(job_routes, "list_table", slow)

    async def run() -> int:
        gone = asyncio.Event()
        running = asyncio.create_task(request(world, "/v1/jobs", gone))
        assert await asyncio.to_thread(started.wait, 10)
        gone.set()
        return await running

    assert asyncio.run(run()) == 499


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/webhooks", "/v1/tokens"])
def test_body_that_ends_early_is_no_error_of_the_service(world: World, path: str) -> None:
    async def run() -> int:
        gone = asyncio.Event()
        gone.set()
        return await request(world, path, gone, "POST")

    with structlog.testing.capture_logs() as lines:
        assert asyncio.run(run()) == 499
    assert [line for line in lines if line["log_level"] == "error"] == []
