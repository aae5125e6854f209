"""A world behind the service's own protocol on a real port, and requests as bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn

from service.api.connection_limits import limited_protocol
from tests.support.wait import wait_until
from tests.support.world import World


@contextmanager
def served_with_limits(world: World, *, limit: int = 100, seconds: float = 0.4) -> Iterator[int]:
    with serve_with_limits(world.app, limit=limit, seconds=seconds) as port:
        yield port


@contextmanager
def serve_with_limits(
    app: Any,
    *,
    limit: int = 100,
    seconds: float = 0.4,
    stall_seconds: float = 30,
    log_level: str = "critical",
    loop: Literal["auto", "asyncio"] = "auto",
) -> Iterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=limited_protocol(limit, seconds, stall_seconds=stall_seconds),
        ws="none",
        log_level=log_level,
        loop=loop,
        lifespan="off",
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started, 10, "the server to listen")
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


def exchange(port: int, request: bytes, seconds: float = 10) -> bytes:
    """Send a request and return the first bytes of the response; nothing if the connection was closed."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(seconds)
        try:
            connection.sendall(request)
            return connection.recv(65536)
        except ConnectionError:
            return b""
