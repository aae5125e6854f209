"""A client that disconnects during a download leaves no open file behind."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def job(world: World) -> str:
    return world.submit()


def open_files(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    links = []
    for handle in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{handle}"))
    return [link for link in links if link.startswith(str(folder))]


async def abort(world: World, path: str, when: Callable[[dict[str, Any]], bool] | None) -> None:
    """Request a path and disconnect after the first message that meets a condition; None: before the response."""
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {world.token}".encode())]
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"client": ("127.0.0.1", 1), "server": ("localhost", 80)}
    disconnected = asyncio.Event()
    if when is None:
        disconnected.set()
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if disconnected.is_set() or (when is not None and when(message)):
            disconnected.set()
            await asyncio.sleep(0)  # lets the disconnect arrive at this point

    await world.app(scope, receive, send)


def test_download_that_never_starts_closes_its_file(world: World, job: str) -> None:
    folder = world.app_state.run_layout(job).artifacts
    folder.mkdir(parents=True)
    (folder / "table.json").write_bytes(b"0123456789")
    for _ in range(3):
        asyncio.run(abort(world, f"/v1/jobs/{job}/artifacts/table.json", None))
    assert open_files(folder) == []


def test_download_that_is_aborted_closes_its_file(world: World, job: str) -> None:
    folder = world.app_state.run_layout(job).artifacts
    folder.mkdir(parents=True)
    (folder / "table.json").write_bytes(b"x" * 2_000_000)
    asyncio.run(abort(world, f"/v1/jobs/{job}/artifacts/table.json", lambda message: bool(message.get("body"))))
    assert open_files(folder) == []


@pytest.mark.parametrize("chunk", [0, 1])
def test_archive_that_is_aborted_closes_its_file(world: World, job: str, chunk: int) -> None:
    folder = world.app_state.run_layout(job).export
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 2_000_000)
    sent: list[bytes] = []

    def is_due(message: dict[str, Any]) -> bool:
        if body := message.get("body"):
            sent.append(body)
        return len(sent) > chunk

    asyncio.run(abort(world, f"/v1/jobs/{job}/export/archive", is_due))
    assert open_files(folder) == []
