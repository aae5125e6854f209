"""Limits of uvicorn's connections: their number, the size of a request head, and the time until it is complete."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0
"""From the connection, or from the end of the previous response, to the complete head of a request."""
HEAD_BYTES = 64 * 1024
"""Maximum size of a request line and headers, or of trailers, beyond the first read."""


class ConnectionLimitsMixin:
    """Limits for both of uvicorn's protocols."""

    limit: int
    """Maximum number of connections of this process."""
    seconds: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self: Any, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        if len(self.connections) > self.limit:
            transport.abort()
        else:
            self._update_timer()

    def data_received(self: Any, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self._update_timer()

    def on_response_complete(self: Any) -> None:
        super().on_response_complete()  # type: ignore[misc]
        self._update_timer()

    def connection_lost(self: Any, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)  # type: ignore[misc]

    def _update_timer(self: Any) -> None:
        """Run the timer while no request is in progress; bytes that do not complete a head do not stop it."""
        if self._has_request():
            self._cancel_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._abort)

    def _has_request(self: Any) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self: Any) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.abort()


class LimitedH11Protocol(ConnectionLimitsMixin, H11Protocol):
    """h11, which limits heads and trailers by itself."""


class LimitedHttpToolsProtocol(ConnectionLimitsMixin, HttpToolsProtocol):
    """httptools, the faster parser."""

    h11_protocol: type[LimitedH11Protocol]
    _head_bytes = 0
    """Bytes since the last body bytes or the last complete head: the parser stores heads and trailers of any size."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if not self._head_bytes and not self._has_request() and _offers_upgrade(data):
            self._switch_to_h11(data)
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def _switch_to_h11(self, data: bytes) -> None:
        """Hand the connection to h11, which reads the body of such a request; httptools would drop it."""
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        other = self.h11_protocol(config=self.config, server_state=self.server_state, app_state=self.app_state)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)


def limited_protocol(limit: int, seconds: float = HEAD_SECONDS) -> type[LimitedHttpToolsProtocol]:
    """Return httptools' protocol with these limits; it hands upgrade requests to h11 with the same limits.

    Args:
        limit: maximum number of connections of this process.
        seconds: time limit for a request head.
    """

    class BoundedH11Protocol(LimitedH11Protocol):
        pass

    class BoundedHttpToolsProtocol(LimitedHttpToolsProtocol):
        h11_protocol = BoundedH11Protocol

    for bounded in (BoundedH11Protocol, BoundedHttpToolsProtocol):
        bounded.limit, bounded.seconds = limit, seconds
    return BoundedHttpToolsProtocol


def _offers_upgrade(data: bytes) -> bool:
    """Whether a request offers an upgrade of the protocol, as Java's client does for HTTP/2."""
    return b"\nupgrade:" in data[: data.find(b"\r\n\r\n")].lower()
