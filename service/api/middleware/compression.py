"""Compresses large JSON answers with gzip.

Only whole answers of the API to GET are compressed: a stream, a download or a page passes unchanged. A page has the
secret that forms send back, and the text that a link put into its address; the size of both compressed together would
tell the secret character by character to whoever can have a browser follow links and see the sizes (BREACH). Answers to
GET have no secret: tokens and keys are returned once, to the POST that creates them.
"""

import zlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.plugin import is_api
from service.core.thread_slots import run_in_thread_slot

MIN_BYTES = 2048
"""Below this size, a packet more or less costs less than the compression."""
_LEVEL = 5
_THREAD_BYTES = 64 * 1024
"""From this size on, a thread compresses, so that other requests do not wait for it."""
_GZIP = 16 + zlib.MAX_WBITS


class CompressionMiddleware:
    """Compresses the JSON answers to GET of the APIs for clients that accept it."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _may_compress(scope):
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Compressor(send).send)


def _may_compress(scope: Scope) -> bool:
    if scope["method"] != "GET" or not is_api(scope):
        return False
    accepted = Headers(scope=scope).get("accept-encoding", "")
    codings = [part.replace(" ", "").lower() for part in accepted.split(",")]
    return any(coding == "gzip" or (coding.startswith("gzip;q=") and coding[7:].strip("0.")) for coding in codings)


class _Compressor:
    """Holds the start of an answer back until its first body shows whether it is whole."""

    def __init__(self, send: Send):
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            media_type = headers.get("content-type", "").partition(";")[0]
            if media_type == "application/json" and "content-encoding" not in headers:
                self._start = message
                return
        elif self._start is not None:
            start, self._start = self._start, None
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                start, message = await _compressed(start, message)
            await self._send(start)
        await self._send(message)


async def _compressed(start: Message, message: Message) -> tuple[Message, Message]:
    headers = MutableHeaders(raw=list(start["headers"]))
    headers.add_vary_header("Accept-Encoding")
    body = message.get("body", b"")
    if len(body) >= MIN_BYTES:
        body = await run_in_thread_slot(_gzip, body) if len(body) >= _THREAD_BYTES else _gzip(body)
        headers["Content-Encoding"] = "gzip"
        headers["Content-Length"] = str(len(body))
    return {**start, "headers": headers.raw}, {**message, "body": body}


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return compressor.compress(body) + compressor.flush()
