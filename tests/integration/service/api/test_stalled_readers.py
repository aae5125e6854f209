"""Readers that take nothing of a response are disconnected; slow ones are not."""

import contextlib
import logging
import socket
import time
from typing import Any

import pytest
import structlog

from service.api import connection_table
from service.core.observability import configure_logging
from tests.support.raw_http import exchange, serve_with_limits
from tests.support.wait import wait_until

SIZE = 8_000_000


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Sends 8 MB, in one message or in parts; anything else gets an empty response."""
    await receive()
    size = SIZE if scope["path"] in ("/whole", "/parts") else 0
    part = 100_000 if scope["path"] == "/parts" else SIZE
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    for start in range(0, size, part):
        body = bytes(part)
        await send({"type": "http.response.body", "body": body, "more_body": start + part < size})
    if not size:
        await send({"type": "http.response.body", "body": b""})


def stalled_request(port: int, path: str, connection: str = "close") -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(5)
    client.connect(("127.0.0.1", port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n".encode())
    return client


def received(client: socket.socket, slow_seconds: float = 0) -> int:
    """Read to the end, slowly at first; return the number of bytes of head and body."""
    total, started = 0, time.monotonic()
    with contextlib.suppress(ConnectionError), client:
        while total < SIZE and (data := client.recv(65536)):
            total += len(data)
            if time.monotonic() - started < slow_seconds:
                time.sleep(0.02)
    return total


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("path", ["/whole", "/parts"])
def test_stalled_reader_is_disconnected(path: str, connection: str) -> None:
    with serve_with_limits(app, seconds=30, stall_seconds=0.2) as port:
        client = stalled_request(port, path, connection)
        wait_until(lambda: _peer_closed(port, client), 5, "the end of the connection")
        assert received(client) < SIZE


@pytest.mark.parametrize("path", ["/whole", "/parts"])
def test_slow_reader_receives_the_whole_response(path: str) -> None:
    with serve_with_limits(app, seconds=0.2, stall_seconds=0.3) as port:
        assert received(stalled_request(port, path, "keep-alive"), slow_seconds=0.7) >= SIZE


@pytest.mark.parametrize("path", ["/whole", "/parts"])
def test_stalled_readers_do_not_exclude_other_clients(path: str) -> None:
    with serve_with_limits(app, limit=3, seconds=30, stall_seconds=60 if path == "/whole" else 1.2) as port:
        clients = [stalled_request(port, path) for _ in range(3)]
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        wait_until(lambda: exchange(port, request).startswith(b"HTTP/1.1 200"), 2, "a response")
        assert min([received(client) for client in clients]) < SIZE


def _peer_closed(port: int, client: socket.socket) -> bool:
    """Whether the service has closed its end, from the kernel's table of connections."""
    local = f":{client.getsockname()[1]:04X}"
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    return not any(row[1].endswith(f":{port:04X}") and row[2].endswith(local) and row[3] == "01" for row in rows)


def test_refusals_of_uvicorn_are_counted_by_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_table, "REFUSAL_SECONDS", 0.3)
    configure_logging("json")
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(record.getMessage())  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as lines, serve_with_limits(app, seconds=5, log_level="warning") as port:
        logging.getLogger("uvicorn.error").addHandler(handler)
        for _ in range(3):
            upgrade = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
            assert exchange(port, upgrade).startswith(b"HTTP/1.1 200")
            assert exchange(port, b"\0\r\n\r\n").startswith(b"HTTP/1.1 400")
        wait_until(lambda: len(lines) >= 2, 5, "the summaries")
        logging.getLogger("uvicorn.error").removeHandler(handler)
    assert written == []
    assert sorted((line["reason"], line["count"]) for line in lines) == [
        ("Invalid HTTP request received.", 3),
        ("Unsupported upgrade request.", 3),
    ]
