"""Connections that bring no request are closed, heads are bounded, and no more than so many connections are open."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0
"""From the connection, or from the end of the answer before, to the whole head of a request."""
HEAD_BYTES = 64 * 1024
"""Of a request line and headers, or of trailers, beyond what comes at once."""


class Impatient:
    """What both of uvicorn's protocols are given."""

    limit: int
    """Connections of this process."""
    seconds: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self: Any, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        if len(self.connections) > self.limit:
            transport.abort()
        else:
            self._watch()

    def data_received(self: Any, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self._watch()

    def on_response_complete(self: Any) -> None:
        super().on_response_complete()  # type: ignore[misc]
        self._watch()

    def connection_lost(self: Any, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)  # type: ignore[misc]

    def _watch(self: Any) -> None:
        """The clock runs while no request is under way; bytes that make none do not stop it."""
        if self._is_under_way():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._give_up)

    def _is_under_way(self: Any) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self: Any) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.abort()


class Thorough(Impatient, H11Protocol):
    """Bounds heads and trailers by itself."""


class Quick(Impatient, HttpToolsProtocol):
    """The one whose parser is quick."""

    thorough: type[Thorough]
    _fruitless = 0
    """Bytes since the last that were body, or ended a head: the parser keeps heads and trailers of any size."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._fruitless = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._fruitless = 0

    def data_received(self, data: bytes) -> None:
        if not self._fruitless and not self._is_under_way() and _wishes_another(data):
            self._hand_over(data)
            return
        self._fruitless += len(data)
        super().data_received(data)
        if self._fruitless > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def _hand_over(self, data: bytes) -> None:
        """To the parser that reads the body of such a request; this one would drop it."""
        self._stop()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        other = self.thorough(config=self.config, server_state=self.server_state, app_state=self.app_state)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)


def protocol(limit: int, seconds: float = HEAD_SECONDS) -> type[Quick]:
    """uvicorn's protocols with these bounds: the one whose parser is quick, and what it leaves to the other.

    Args:
        limit: connections of this process.
    """

    class BoundedThorough(Thorough):
        pass

    class BoundedQuick(Quick):
        thorough = BoundedThorough

    for bounded in (BoundedThorough, BoundedQuick):
        bounded.limit, bounded.seconds = limit, seconds
    return BoundedQuick


def _wishes_another(data: bytes) -> bool:
    """Whether a request's first bytes ask for another protocol, as Java's client does for HTTP/2. Pure."""
    return b"\nupgrade:" in data[: data.find(b"\r\n\r\n")].lower()
