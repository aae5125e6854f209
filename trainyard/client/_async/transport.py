"""Connection, retries and paging."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

import httpx

from trainyard.client.connection import connection
from trainyard.client.errors import TrainyardError, connection_failed, error_of
from trainyard.client.request import Request, next_page
from trainyard.client.retry import retry_delay
from trainyard.client.waiting import CONNECT_TIMEOUT_SECONDS, RESPONSE_TIMEOUT_SECONDS
from trainyard.contract.http import API_HEADER, API_VERSION, AsyncServiceTransport
from trainyard.contract.wire.pages import Page

T = TypeVar("T")


class AsyncTransport:
    """A connection pool to a service.

    Args:
        url: base URL; default `TRAINYARD_URL`, then the service on this machine.
        token: API token; default `TRAINYARD_TOKEN`, then the admin token file of the service on this machine.
        timeout: seconds that a response may take before the request is retried.
        transport: an httpx transport, for tests.
        sleep: waits for a number of seconds, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = RESPONSE_TIMEOUT_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        service = connection(url, token)
        self.url = service.url
        self.local = service.local
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=service.url,
            headers=service.headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT_SECONDS),
            transport=transport or AsyncServiceTransport(service.url, is_local=service.local),
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.address}>"

    @property
    def address(self) -> str:
        """The URL of the service without a password, to be shown."""
        return str(httpx.URL(self.url).copy_with(userinfo=b""))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; `async with AsyncClient() as client` does so at the end of the block."""
        await self._http.aclose()

    async def _send(self, request: Request[T]) -> T:
        """Send a request, with retries, and return the parsed response."""
        failures = 0
        while True:
            try:
                return await self._send_once(request)
            except TrainyardError as error:
                failures += 1
                if request.already_deleted(error, failures):
                    return request.read(httpx.Response(204, headers={API_HEADER: API_VERSION}))
                delay = retry_delay(error, failures, repeatable=request.repeatable)
                if delay is None:
                    raise
            await self._sleep(delay)

    async def _send_once(self, request: Request[T]) -> T:
        try:
            response = await self._http.request(
                request.method,
                request.path,
                params=request.params,
                headers=request.headers,
                content=request.content,
                timeout=httpx.USE_CLIENT_DEFAULT if request.timeout is None else request.timeout,
            )
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        if not response.is_success:
            raise error_of(response)
        return request.read(response)

    async def _pages(self, request: Request[Page[T]]) -> AsyncIterator[T]:
        """Yield the items of all pages; a page is requested when its first item is needed."""
        rest: Request[Page[T]] | None = request
        while rest is not None:
            page = await self._send(rest)
            for item in page.data[: rest.max_items]:
                yield item
            rest = next_page(rest, page)

    async def _list(self, request: Request[Page[T]]) -> list[T]:
        """Return the items of all pages."""
        return [item async for item in self._pages(request)]
