"""Limits of uvicorn's connections: their number, the size of a request head, and the time until it is complete."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0
"""From the connection, or from the end of the previous response, to the complete head of a request."""
HEAD_BYTES = 64 * 1024
"""Maximum size of a request line and headers, or of trailers. One read from the socket may exceed it."""


class ConnectionTable:
    """The connections of this process, with fair shares of their number."""

    def __init__(self, limit: int, per_address: int, exempt: Sequence[IPv4Network | IPv6Network]):
        """
        Args:
            limit: Maximum number of connections.
            per_address: Maximum number of connections of one address.
            exempt: Networks without a limit for each address.
        """
        self._limit = limit
        self._per_address = per_address
        self._exempt = exempt
        self._counts: Counter[str] = Counter()
        self.idle: dict[ConnectionLimitsMixin, None] = {}
        """Connections without a request in progress, the longest idle first."""

    def admit(self, address: str, total: int) -> bool:
        """Count a new connection; return whether it may stay open.

        At the limit, the connection that has been idle for longest is closed instead of the new one. Idle connections
        of one client can therefore not exclude the others, whatever their addresses.
        """
        self._counts[address] += 1
        if self._counts[address] > self._per_address and not self._is_exempt(address):
            return False
        if total <= self._limit:
            return True
        oldest = next(iter(self.idle), None)
        if oldest is not None:
            oldest.close_now()
        return oldest is not None

    def forget(self, address: str) -> None:
        """Count the end of a connection."""
        self._counts -= Counter((address,))

    def _is_exempt(self, text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:
            return True
        return address.is_loopback or any(address in network for network in self._exempt)


class ConnectionLimitsMixin:
    """Limits for both of uvicorn's protocols."""

    table: ConnectionTable
    seconds: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self: Any, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
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
        self.table.forget(self._address())
        super().connection_lost(exc)  # type: ignore[misc]

    def _address(self: Any) -> str:
        """The peer's address; a Unix socket has none."""
        return self.client[0] if self.client else ""

    def _update_timer(self: Any) -> None:
        """Run the timer while no request is in progress; bytes that do not complete a head do not stop it."""
        if self._has_request():
            self._cancel_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self.close_now)
            self.table.idle[self] = None

    def _has_request(self: Any) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.table.idle.pop(self, None)

    def close_now(self: Any) -> None:
        """Close the connection without a response."""
        self._cancel_timer()
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
    per_address: int | None = None,
    trusted_proxies: Sequence[str] = (),
) -> type[LimitedHttpToolsProtocol]:
    """Return httptools' protocol with these limits; it hands upgrade requests to h11 with the same limits.

    Args:
        limit: maximum number of connections of this process.
        seconds: time limit for a request head.
        per_address: maximum number of connections of one address; None: no limit.
        trusted_proxies: addresses or networks without a limit for each address.
    """

    class BoundedH11Protocol(LimitedH11Protocol):
        pass

    class BoundedHttpToolsProtocol(LimitedHttpToolsProtocol):
        h11_protocol = BoundedH11Protocol

    exempt = [ip_network(proxy) for proxy in trusted_proxies]
    table = ConnectionTable(limit, per_address or limit + 1, exempt)
    for bounded in (BoundedH11Protocol, BoundedHttpToolsProtocol):
        bounded.table, bounded.seconds = table, seconds
    return BoundedHttpToolsProtocol


def _offers_upgrade(data: bytes) -> bool:
    """Whether a request offers an upgrade of the protocol, as Java's client does for HTTP/2."""
    return b"\nupgrade:" in data[: data.find(b"\r\n\r\n")].lower()
