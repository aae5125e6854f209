"""Limits of uvicorn's connections: the size of a request head, the time until it is complete, and their number."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.api.connection_table import STALL_SECONDS, ConnectionTable, WriteProgress

HEAD_SECONDS = 20.0
"""From the connection, or from the end of the previous response, to the complete head of a request."""
HEAD_BYTES = 64 * 1024
"""Maximum size of a request line and headers, or of trailers. One read from the socket may exceed it."""


class ConnectionLimitsMixin:
    """Limits for both of uvicorn's protocols."""

    table: ConnectionTable
    seconds: float
    progress: WriteProgress
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self: Any, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.progress = WriteProgress(transport)
        self.table.watch(self)
        if self.table.admit(self._address(), len(self.connections)):
            self._update_timer()
        else:
            transport.abort()

    def data_received(self: Any, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self._update_timer()

    def on_response_complete(self: Any) -> None:
        super().on_response_complete()  # type: ignore[misc]
        self._update_timer()

    def connection_lost(self: Any, exc: Exception | None) -> None:
        self._cancel_timer()
        self.table.unwatch(self)
        self.table.forget(self._address())
        super().connection_lost(exc)  # type: ignore[misc]

    def send_400_response(self: Any, msg: str) -> None:
        self.table.count_refusal(msg, self.loop)
        super().send_400_response(msg)  # type: ignore[misc]

    def _unsupported_upgrade_warning(self: Any) -> None:
        self.table.count_refusal("Unsupported upgrade request.", self.loop)

    def _address(self: Any) -> str:
        """The peer's address; a Unix socket has none."""
        return self.client[0] if self.client else ""

    def _update_timer(self: Any) -> None:
        """Run the timer while no request is in progress; bytes that do not complete a head do not stop it."""
        if self._has_request():
            self._cancel_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._close_idle)
            self.table.idle[self] = None

    def _close_idle(self: Any) -> None:
        """Close the connection, or wait for a slow reader; the table closes connections whose reader takes nothing."""
        if self.progress.has_unsent:
            self._timer = self.loop.call_later(self.seconds, self._close_idle)
        else:
            self.close_now()

    def _has_request(self: Any) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _cancel_timer(self: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.table.idle.pop(self, None)

    def close_now(self: Any) -> None:
        """Close the connection, and discard unsent data: `close` would wait until the client has read it."""
        self._cancel_timer()
        self.table.unwatch(self)
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
        self.table.unwatch(self)
        self.table.forget(self._address())
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        other = self.h11_protocol(config=self.config, server_state=self.server_state, app_state=self.app_state)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)


def limited_protocol(
    limit: int,
    seconds: float = HEAD_SECONDS,
    *,
    stall_seconds: float = STALL_SECONDS,
    per_address: int | None = None,
    trusted_proxies: Sequence[str] = (),
) -> type[LimitedHttpToolsProtocol]:
    """Return httptools' protocol with these limits; it hands upgrade requests to h11 with the same limits.

    Args:
        limit: maximum number of connections of this process.
        seconds: time limit for a request head.
        stall_seconds: time limit for a reader that takes nothing of a response.
        per_address: maximum number of connections per IPv4 address or IPv6 /64 network; None: no limit.
        trusted_proxies: addresses or networks without a limit for each address.
    """

    class BoundedH11Protocol(LimitedH11Protocol):
        pass

    class BoundedHttpToolsProtocol(LimitedHttpToolsProtocol):
        h11_protocol = BoundedH11Protocol

    exempt = [ip_network(proxy) for proxy in trusted_proxies]
    table = ConnectionTable(limit, per_address or limit + 1, exempt, stall_seconds)
    for bounded in (BoundedH11Protocol, BoundedHttpToolsProtocol):
        bounded.table, bounded.seconds = table, seconds
    return BoundedHttpToolsProtocol


def _offers_upgrade(data: bytes) -> bool:
    """Whether a request offers an upgrade of the protocol, as Java's client does for HTTP/2."""
    return b"\nupgrade:" in data[: data.find(b"\r\n\r\n")].lower()
