"""The synchronous client is written from the asynchronous one, before a test can import an older one."""

import sys
from pathlib import Path

import pytest

from tests.conftest import write_sync_client
from trainyard.client import Client
from trainyard.installation import sync_client

ASYNC = '''"""The asynchronous client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from trainyard.client._async.transport import AsyncTransport


class AsyncCalls(AsyncTransport):
    async def rows(self, path: str, pause: Callable[[], Awaitable[None]]) -> AsyncIterator[str]:
        await asyncio.to_thread(open, path)
        async with self._http.stream(path) as answer:
            async for row in answer:
                yield row
'''
SYNC = '''# Generated from _async/calls.py by trainyard/installation/sync_client.py; do not edit.
"""The synchronous client."""

from collections.abc import Iterator, Callable

from trainyard.client._sync.transport import Transport


class Calls(Transport):
    def rows(self, path: str, pause: Callable[[], None]) -> Iterator[str]:
        open(path)
        with self._http.stream(path) as answer:
            yield from answer
'''


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an asynchronous client of one file."""
    monkeypatch.setattr(sync_client, "CLIENT", tmp_path)
    (tmp_path / "_async").mkdir()
    (tmp_path / "_async" / "calls.py").write_text(ASYNC)
    return tmp_path


def test_only_files_that_differ_are_written(client: Path) -> None:
    assert sync_client.write() == ["calls.py"]
    assert (client / "_sync" / "calls.py").read_text() == SYNC
    assert sync_client.write() == []
    (client / "_sync" / "former.py").write_text("")
    (client / "_async" / "calls.py").write_text(ASYNC + "\nX = 1\n")
    assert sync_client.write() == ["calls.py", "former.py"]
    assert [path.name for path in (client / "_sync").iterdir()] == ["calls.py"]


def test_a_pause_is_one_of_the_thread(client: Path) -> None:
    (client / "_async" / "calls.py").write_text("import asyncio\n\n\nasync def f():\n    await asyncio.sleep(1)\n")
    sync_client.write()
    assert (client / "_sync" / "calls.py").read_text().endswith("import time\n\n\ndef f():\n    time.sleep(1)\n")


@pytest.mark.usefixtures("client")
def test_tests_do_not_start_with_an_older_client_in_memory() -> None:
    assert Client.__module__ in sys.modules
    with pytest.raises(pytest.UsageError, match=r"out of date \(calls.py\); run pytest again"):
        write_sync_client()
    write_sync_client()
