"""Client: the API for ordinary programs."""

import time
from collections.abc import Callable, Iterator, Mapping
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
    fetch,
    no_export,
    no_progress,
    whole_file,
)
from trainyard.client.errors import TrainyardError, connection_failed, error_of, not_trainyard
from trainyard.client.handles import HandleCalls, JobHandle
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


class Client(AccessCalls, HandleCalls, SharedCalls):
    """One connection pool to one service. Close it, or use it in a `with` statement.

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
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        where = connection(url, token)
        self.url = where.url
        self.local = where.local
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=where.url,
            headers=where.headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            transport=transport,
            trust_env=not where.local,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go; `with Client() as client` does so by itself."""
        self._http.close()

    def submit(
        self,
        spec: Spec,
        *,
        code: str | Path | None = None,
        idempotency_key: str | None = None,
        force: bool = False,
    ) -> JobHandle:
        """Submit a spec: a TrainingSpec, plain data, or YAML text. The same key and spec give the same job.

        Args:
            code: for tasks `custom` and `script`, the folder with your code; uploaded unless the service has it.
            force: submit it even where it cannot fit the GPUs' memory.
        """
        if code is not None:
            spec = requests.with_code(spec, self.upload(code))
        return JobHandle(self, self._send(requests.submit(spec, idempotency_key, force=force)))

    def upload(self, folder: str | Path) -> str:
        """Bring a folder with your code to the service, unless it has it: its digest, which a spec names as `code`.

        Raises:
            SpecError: the folder cannot be packed.
        """
        archive = pack(Path(folder))
        try:
            self._send(requests.has_code(archive.digest))
        except TrainyardError as error:
            if error.status != 404:
                raise
            self._send(requests.put_code(archive))
        return archive.digest

    def job(self, job_id: str) -> JobHandle:
        """A job: its resource, and what can be asked of it and done to it."""
        return JobHandle(self, self._send(requests.job(job_id)))

    def fork(
        self, job_id: str, *, step: int | None = None, changes: Mapping[str, Any] | None = None, force: bool = False
    ) -> JobHandle:
        """Submit the job's spec again, to start from its newest checkpoint or that of `step`.

        Args:
            changes: top-level fields of the spec to replace; `steps` alone takes `epochs` back.
            force: submit it even where it cannot fit the GPUs' memory.
        """
        spec = requests.fork_spec(self._send(requests.job(job_id)), step)
        return self.submit(requests.changed(spec, changes or {}), force=force)

    def download(
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
            manifest = self._send(requests.file_content(job_id, folder, MANIFEST))
            digests = digests_of(manifest, checkpoint.digest)
        found = self.files(job_id, folder)
        if not (found or checkpoint):
            raise no_export(self._send(requests.job(job_id)))
        for file in found:
            download = Download(file, Path(to), digests.get(file.path), progress)
            fetch(self._http, self.url, requests.file_path(job_id, folder, file.path), download, self._sleep)
        return Path(to)

    def download_artifact(self, job_id: str, path: str, to: str | Path) -> Path:
        """Fetch one artifact into the file `to`, which appears only whole."""
        request = requests.artifact(job_id, path)
        try:
            with self._http.stream(request.method, request.path) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                with whole_file(Path(to)) as file:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        return Path(to)

    def ready(self) -> bool:
        """Whether the service is up with everything it needs."""
        try:
            return self._once(requests.ready())
        except TrainyardError:
            return False

    def wait(self, job_id: str, timeout: float | None = None) -> JobResource:
        """Return the job once it is over. A restart of the service meanwhile does no harm.

        Raises:
            WaitTimeoutError: it was not over after `timeout` seconds.
        """
        wait = Wait(job_id, timeout, time.monotonic)
        while True:
            try:
                job = self._send(requests.job(job_id))
            except TrainyardError as error:
                delay = wait.unanswered(error)
            else:
                if wait.is_over(job):
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
        on_retry: Callable[[TrainyardError, float], None] | None = None,
    ) -> Iterator[StreamEvent]:
        """What happens to the job, as it happens, until it is over. Broken connections are taken up again.

        Args:
            last_event_id: go on after this event.
            logs: whether log text is wanted too.
            patience: seconds without the service after which a broken connection is an error.
            on_retry: told of each error that is being waited out, and for how long.
        """
        cursor = StreamCursor(requests.stream(job_id, logs=logs), last_event_id, patience)
        return self._follow(cursor, on_retry)

    def stream_all(
        self,
        *,
        last_event_id: str | None = None,
        patience: float = 3600.0,
        on_retry: Callable[[TrainyardError, float], None] | None = None,
    ) -> Iterator[StreamEvent]:
        """What happens to every job, from now on or after `last_event_id`, without logs; it has no end."""
        cursor = StreamCursor(requests.stream_all(), last_event_id, patience, endless=True)
        return self._follow(cursor, on_retry)

    def _follow(
        self, cursor: StreamCursor, on_retry: Callable[[TrainyardError, float], None] | None
    ) -> Iterator[StreamEvent]:
        while True:
            try:
                yield from self._stream_once(cursor)
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

    def _items(self, request: Request[Page[T]]) -> Iterator[T]:
        rest: Request[Page[T]] | None = request
        while rest is not None:
            page = self._send(rest)
            yield from page.data[: rest.most]
            rest = following(rest, page)

    def _send(self, request: Request[T]) -> T:
        failures = 0
        while True:
            try:
                return self._once(request)
            except TrainyardError as error:
                failures += 1
                if request.is_done(error, failures):
                    return request.read(httpx.Response(204))
                delay = retry_delay(error, failures, repeatable=request.repeatable)
                if delay is None:
                    raise
            self._sleep(delay)

    def _once(self, request: Request[T]) -> T:
        try:
            response = self._http.request(
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
