"""Waiting for a job, and the streams of server-sent events."""

import time
from collections.abc import AsyncIterator, Callable

import httpx
from pydantic import ValidationError

from trainyard.client._async.transport import AsyncTransport
from trainyard.client.errors import TrainyardError, connection_failed, error_of, require_own, unreadable
from trainyard.client.request import EVENT_STREAM, Request, job_path, model, no_result
from trainyard.client.stream import StreamCursor, StreamEvent
from trainyard.client.waiting import STREAM_TIMEOUT, Wait
from trainyard.contract.wire.jobs import JobResource

RetryCallback = Callable[[TrainyardError, float], None]
"""Called before each retry with the error and the delay in seconds."""


class AsyncStreamCalls(AsyncTransport):
    """Waiting and streaming."""

    async def ready(self) -> bool:
        """Return whether the service and everything that it depends on is up."""
        try:
            return await self._send_once(Request("GET", "/readyz", lambda response: response.is_success))
        except TrainyardError:
            return False

    async def wait(self, job_id: str, timeout: float | None = None) -> JobResource:
        """Return the job when it has ended. Restarts of the service are waited out.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            WaitTimeoutError: the job has not ended after `timeout` seconds.
        """
        wait = Wait(job_id, timeout, time.monotonic)
        while True:
            try:
                job = await self._send(Request("GET", job_path(job_id), model(JobResource)))
            except TrainyardError as error:
                delay = wait.delay_after(error)
            else:
                if wait.has_ended(job):
                    return job
                delay = wait.next_delay()
            await self._sleep(delay)

    def stream(
        self,
        job_id: str,
        *,
        last_event_id: str | int | None = None,
        logs: bool = True,
        patience: float = 3600.0,
        on_retry: RetryCallback | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Iterate over a job's live events until the job has ended. A broken connection is resumed without loss.

        Args:
            last_event_id: continue after this event.
            logs: whether to include log text.
            patience: seconds without the service after which a broken connection is an error.
            on_retry: called before each retry with the error and the delay in seconds.
        """
        params = {} if logs else {"logs": "false"}
        request = Request("GET", job_path(job_id, "stream"), no_result, params, EVENT_STREAM)
        return self._follow(StreamCursor(request, last_event_id, patience), on_retry)

    def stream_all(
        self, *, last_event_id: str | None = None, patience: float = 3600.0, on_retry: RetryCallback | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Iterate without end over the live events of all jobs, without logs, from now on or after `last_event_id`."""
        request = Request("GET", "/v1/stream", no_result, headers=EVENT_STREAM)
        return self._follow(StreamCursor(request, last_event_id, patience, endless=True), on_retry)

    async def _follow(self, cursor: StreamCursor, on_retry: RetryCallback | None) -> AsyncIterator[StreamEvent]:
        while True:
            try:
                async for event in self._stream_once(cursor):
                    yield event
                if cursor.complete:
                    return
                delay = cursor.pause()
            except TrainyardError as error:
                retry_after = cursor.delay(error)
                if retry_after is None:
                    raise
                delay = retry_after
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
                require_own(response)
                cursor.connected(response.status_code)
                async for chunk in response.aiter_bytes():
                    for event in cursor.feed(chunk):
                        yield event
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        except ValidationError:
            raise unreadable(response) from None
