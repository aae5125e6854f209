"""AsyncClient: the same API for programs that run on asyncio. See `Client` for what each call does."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import ValidationError

from trainyard.client import requests
from trainyard.client.access import AccessCalls
from trainyard.client.bodies import Spec
from trainyard.client.calls import SharedCalls
from trainyard.client.download import (
    MANIFEST,
    Download,
    Progress,
    digests_of,
    fetch_async,
    no_export,
    no_progress,
    whole_file,
)
from trainyard.client.errors import TrainyardError, connection_failed, error_of, not_trainyard
from trainyard.client.handles import AsyncJobHandle, HandleCalls
from trainyard.client.packing import pack
from trainyard.client.retry import retry_delay
from trainyard.client.settings import connection
from trainyard.client.stream import StreamCursor, StreamEvent
from trainyard.client.waiting import ANSWER_SECONDS, CONNECT_SECONDS, STREAM_TIMEOUT, Wait
from trainyard.client.wire import Request, following
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.pages import Page

T = TypeVar("T")


class AsyncClient(AccessCalls, HandleCalls, SharedCalls):
    """One connection pool to one service. Close it, or use it in a `async with` statement.

    Args:
        url: default `TRAINYARD_URL`, then the local service.
        token: default `TRAINYARD_TOKEN`, then the local service's admin token file.
        timeout: seconds that one answer may take before the request is tried again.
        transport, sleep: for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = ANSWER_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        where = connection(url, token)
        self.url = where.url
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=where.url,
            headers=where.headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            transport=transport,
            trust_env=not where.local,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let the connections go; `async with AsyncClient() as client` does so by itself."""
        await self._http.aclose()

    async def submit(
        self,
        spec: Spec,
        *,
        code: str | Path | None = None,
        idempotency_key: str | None = None,
        force: bool = False,
    ) -> AsyncJobHandle:
        """See `Client.submit`."""
        if code is not None:
            spec = requests.with_code(spec, await self.upload(code))
        return AsyncJobHandle(self, await self._send(requests.submit(spec, idempotency_key, force=force)))

    async def upload(self, folder: str | Path) -> str:
        """See `Client.upload`."""
        archive = await asyncio.to_thread(pack, Path(folder))
        try:
            await self._send(requests.has_code(archive.digest))
        except TrainyardError as error:
            if error.status != 404:
                raise
            await self._send(requests.put_code(archive))
        return archive.digest

    async def job(self, job_id: str) -> AsyncJobHandle:
        """See `Client.job`."""
        return AsyncJobHandle(self, await self._send(requests.job(job_id)))

    async def fork(
        self, job_id: str, *, step: int | None = None, changes: Mapping[str, Any] | None = None, force: bool = False
    ) -> AsyncJobHandle:
        """Submit the job's spec again, to start from its newest checkpoint or that of `step`.

        Args:
            changes: top-level fields of the spec to replace; `steps` alone takes `epochs` back.
            force: submit it even where it cannot fit the GPUs' memory.
        """
        spec = requests.fork_spec(await self._send(requests.job(job_id)), step)
        return await self.submit(requests.changed(spec, changes or {}), force=force)

    async def download(
        self,
        job_id: str,
        to: str | Path,
        *,
        checkpoint: CheckpointResource | None = None,
        progress: Progress = no_progress,
    ) -> Path:
        """Bring the export or a checkpoint into a folder. A repeated call goes on where one broke off.

        A checkpoint's files are compared with its digests.
        """
        folder = f"checkpoints/{checkpoint.id}" if checkpoint else "export"
        digests: dict[str, str] = {}
        if checkpoint:
            manifest = await self._send(requests.file_content(job_id, folder, MANIFEST))
            digests = digests_of(manifest, checkpoint.digest)
        found = await self.files(job_id, folder)
        if not (found or checkpoint):
            raise no_export(await self._send(requests.job(job_id)))
        for file in found:
            download = Download(file, Path(to), digests.get(file.path), progress)
            await fetch_async(
                self._http, self.url, requests.file_path(job_id, folder, file.path), download, self._sleep
            )
        return Path(to)

    async def download_artifact(self, job_id: str, path: str, to: str | Path) -> Path:
        """Fetch one artifact into the file `to`, which appears only whole."""
        request = requests.artifact(job_id, path)
        try:
            async with self._http.stream(request.method, request.path) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                with whole_file(Path(to)) as file:
                    async for chunk in response.aiter_bytes():
                        file.write(chunk)
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        return Path(to)

    async def ready(self) -> bool:
        """Whether the service is up with everything it needs."""
        try:
            return await self._once(requests.ready())
        except TrainyardError:
            return False

    async def wait(self, job_id: str, timeout: float | None = None) -> JobResource:
        """Return the job once it is over. A restart of the service meanwhile does no harm.

        Raises:
            WaitTimeoutError: it was not over after `timeout` seconds.
        """
        wait = Wait(job_id, timeout, time.monotonic)
        while True:
            try:
                job = await self._send(requests.job(job_id))
            except TrainyardError as error:
                delay = wait.unanswered(error)
            else:
                if wait.is_over(job):
                    return job
                delay = wait.next_delay()
            await self._sleep(delay)

    async def stream(
        self,
        job_id: str,
        *,
        last_event_id: str | int | None = None,
        logs: bool = True,
        patience: float = 3600.0,
        on_retry: Callable[[TrainyardError, float], None] | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """What happens to the job, as it happens, until it is over. Broken connections are taken up again.

        Args:
            last_event_id: go on after this event.
            logs: whether log text is wanted too.
            patience: seconds without the service after which a broken connection is an error.
            on_retry: told of each error that is being waited out, and for how long.
        """
        cursor = StreamCursor(requests.stream(job_id, logs=logs), last_event_id, patience)
        async for event in self._follow(cursor, on_retry):
            yield event

    async def stream_all(
        self,
        *,
        last_event_id: str | None = None,
        patience: float = 3600.0,
        on_retry: Callable[[TrainyardError, float], None] | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """What happens to every job, from now on or after `last_event_id`, without logs; it has no end."""
        cursor = StreamCursor(requests.stream_all(), last_event_id, patience, endless=True)
        async for event in self._follow(cursor, on_retry):
            yield event

    async def _follow(
        self, cursor: StreamCursor, on_retry: Callable[[TrainyardError, float], None] | None
    ) -> AsyncIterator[StreamEvent]:
        while True:
            try:
                async for event in self._stream_once(cursor):
                    yield event
                if cursor.complete:
                    return
                delay = cursor.pause()
            except TrainyardError as error:
                wait = cursor.delay(error)
                if wait is None:
                    raise
                delay = wait
                if on_retry is not None:
                    on_retry(error, delay)
            await self._sleep(delay)

    async def _stream_once(self, cursor: StreamCursor) -> AsyncIterator[StreamEvent]:
        request = cursor.request()
        try:
            async with self._http.stream(
                request.method, request.path, params=request.params, headers=request.headers, timeout=STREAM_TIMEOUT
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                cursor.connected(response.status_code)
                async for chunk in response.aiter_bytes():
                    for event in cursor.feed(chunk):
                        yield event
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        except ValidationError:
            raise not_trainyard(response) from None

    async def _items(self, request: Request[Page[T]]) -> AsyncIterator[T]:
        rest: Request[Page[T]] | None = request
        while rest is not None:
            page = await self._send(rest)
            for item in page.data[: rest.most]:
                yield item
            rest = following(rest, page)

    async def _send(self, request: Request[T]) -> T:
        failures = 0
        while True:
            try:
                return await self._once(request)
            except TrainyardError as error:
                failures += 1
                if request.is_done(error, failures):
                    return request.read(httpx.Response(204))
                delay = retry_delay(error, failures, repeatable=request.repeatable)
                if delay is None:
                    raise
            await self._sleep(delay)

    async def _once(self, request: Request[T]) -> T:
        try:
            response = await self._http.request(
                request.method,
                request.path,
                params=request.params,
                headers=request.headers,
                content=request.content,
            )
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        if not response.is_success:
            raise error_of(response)
        return request.read(response)
