# Generated from _async/transport.py by installation/sync_client.py; do not edit.
"""Connection, retries and paging."""

import time
from collections.abc import Iterator, Callable
from types import TracebackType
from typing import Self, TypeVar

import httpx

from trainyard.client.connection import connection
from trainyard.client.errors import TrainyardError, connection_failed, error_of
from trainyard.client.request import Request, next_page
from trainyard.client.retry import retry_delay
from trainyard.client.waiting import CONNECT_TIMEOUT_SECONDS, RESPONSE_TIMEOUT_SECONDS
from trainyard.contract.wire.pages import Page

T = TypeVar("T")


class Transport:
    """A connection pool to one service.

    Args:
        url: base URL; default `TRAINYARD_URL`, then the service on this machine.
        token: API token; default `TRAINYARD_TOKEN`, then the admin token file of the service on this machine.
        timeout: seconds that one response may take before the request is retried.
        transport: an httpx transport, for tests.
        sleep: waits for a number of seconds, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = RESPONSE_TIMEOUT_SECONDS,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        service = connection(url, token)
        self.url = service.url
        self.local = service.local
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=service.url,
            headers=service.headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT_SECONDS),
            transport=transport,
            trust_env=not service.local,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.address}>"

    @property
    def address(self) -> str:
        """The URL of the service without a password, to be shown."""
        return str(httpx.URL(self.url).copy_with(userinfo=b""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; `with Client() as client` does so at the end of the block."""
        self._http.close()

    def _send(self, request: Request[T]) -> T:
        """Send a request, with retries, and return the parsed response."""
        failures = 0
        while True:
            try:
                return self._send_once(request)
            except TrainyardError as error:
                failures += 1
                if request.already_deleted(error, failures):
                    return request.read(httpx.Response(204))
                delay = retry_delay(error, failures, repeatable=request.repeatable)
                if delay is None:
                    raise
            self._sleep(delay)

    def _send_once(self, request: Request[T]) -> T:
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

    def _pages(self, request: Request[Page[T]]) -> Iterator[T]:
        """Yield the items of all pages; a page is requested when its first item is needed."""
        rest: Request[Page[T]] | None = request
        while rest is not None:
            page = self._send(rest)
            yield from page.data[: rest.max_items]
            rest = next_page(rest, page)

    def _list(self, request: Request[Page[T]]) -> list[T]:
        """Return the items of all pages."""
        return [item for item in self._pages(request)]
