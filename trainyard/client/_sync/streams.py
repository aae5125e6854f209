# Generated from _async/streams.py by installation/sync_client.py; do not edit.
"""Waiting for a job, and the streams of server-sent events."""

import time
from collections.abc import Iterator, Callable

import httpx
from pydantic import ValidationError

from trainyard.client._sync.transport import Transport
from trainyard.client.errors import TrainyardError, connection_failed, error_of, not_trainyard
from trainyard.client.request import EVENT_STREAM, Request, job_path, model, no_result
from trainyard.client.stream import StreamCursor, StreamEvent
from trainyard.client.waiting import STREAM_TIMEOUT, Wait
from trainyard.contract.wire.jobs import JobResource

RetryCallback = Callable[[TrainyardError, float], None]
"""Called before each retry with the error and the delay in seconds."""


class StreamCalls(Transport):
    """Waiting and streaming."""

    def ready(self) -> bool:
        """Return whether the service and everything that it depends on is up."""
        try:
            return self._send_once(Request("GET", "/readyz", lambda response: response.is_success))
        except TrainyardError:
            return False

    def wait(self, job_id: str, timeout: float | None = None) -> JobResource:
        """Return the job when it has ended. Restarts of the service are waited out.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            WaitTimeoutError: the job has not ended after `timeout` seconds.
        """
        wait = Wait(job_id, timeout, time.monotonic)
        while True:
            try:
                job = self._send(Request("GET", job_path(job_id), model(JobResource)))
            except TrainyardError as error:
                delay = wait.delay_after(error)
            else:
                if wait.has_ended(job):
                    return job
                delay = wait.next_delay()
            self._sleep(delay)

    def stream(
        self,
        job_id: str,
        *,
        last_event_id: str | int | None = None,
        logs: bool = True,
        patience: float = 3600.0,
        on_retry: RetryCallback | None = None,
    ) -> Iterator[StreamEvent]:
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
        self,
        *,
        last_event_id: str | None = None,
        patience: float = 3600.0,
        on_retry: RetryCallback | None = None,
    ) -> Iterator[StreamEvent]:
        """Iterate without end over the live events of all jobs, without logs, from now on or after `last_event_id`."""
        request = Request("GET", "/v1/stream", no_result, headers=EVENT_STREAM)
        return self._follow(StreamCursor(request, last_event_id, patience, endless=True), on_retry)

    def _follow(self, cursor: StreamCursor, on_retry: RetryCallback | None) -> Iterator[StreamEvent]:
        while True:
            try:
                yield from self._stream_once(cursor)
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
            self._sleep(delay)

    def _stream_once(self, cursor: StreamCursor) -> Iterator[StreamEvent]:
        request = cursor.request()
        try:
            with self._http.stream(
                request.method, request.path, params=request.params, headers=request.headers, timeout=STREAM_TIMEOUT
            ) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                cursor.connected(response.status_code)
                for chunk in response.iter_bytes():
                    yield from cursor.feed(chunk)
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        except ValidationError:
            raise not_trainyard(response) from None
