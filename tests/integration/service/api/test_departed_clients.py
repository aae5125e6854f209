"""Work that nobody waits for is not done, and other requests of its connection are."""

import asyncio
import socket
import threading
from typing import Any

import pytest
import structlog

from service.api.routes import jobs as job_routes
from service.core.thread_slots import ThreadSlots
from tests.integration.service.db.test_deadlines import run_slow_query
from tests.support.raw_http import serve_with_limits
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


def receive_answers(connection: socket.socket, count: int, end: bytes) -> bytes:
    """Receive as many answers as have this end."""
    received = b""
    while received.count(end) < count:
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    return received


def test_deadline_of_a_request_ends_no_later_one_of_its_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two requests at once, the loop of asyncio goes on to receive in the context of the first one."""
    get = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" % world.token.encode()
    usual = world.app_state.user_slots
    monkeypatch.setattr(world.app_state, "user_slots", ThreadSlots(each=1, total=1, seconds=0))
    with (
        serve_with_limits(world.app, seconds=20, loop="asyncio") as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        connection.sendall(get + get)
        receive_answers(connection, 2, b'"code":"too_expensive"}}')
        monkeypatch.setattr(world.app_state, "user_slots", usual)
        connection.sendall(get)
        assert receive_answers(connection, 1, b"}").startswith(b"HTTP/1.1 200 ")
