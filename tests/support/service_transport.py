"""A transport to an imitated service, whose answers have the header of a service."""

from collections.abc import Callable
from typing import Any

import httpx

from trainyard.contract.http import API_HEADER, API_VERSION


def service_transport(handler: Callable[[httpx.Request], Any], *, reached: bool = True) -> httpx.MockTransport:
    """Return the transport. Answers of the handler that are plain text, or have the header `Server`, are of a proxy.

    Args:
        reached: Whether the proxy passes `/livez` on to the service.
    """

    def with_header(answer: httpx.Response) -> httpx.Response:
        if not answer.headers.get("content-type", "").startswith("text/plain") and "server" not in answer.headers:
            answer.headers.setdefault(API_HEADER, API_VERSION)
        return answer

    def answer(request: httpx.Request) -> Any:
        if request.url.path == "/livez":
            return with_header(httpx.Response(200, json={})) if reached else httpx.Response(502, text="<html>")
        made = handler(request)
        if isinstance(made, httpx.Response):
            return with_header(made)

        async def wait() -> httpx.Response:
            return with_header(await made)

        return wait()

    return httpx.MockTransport(answer)
