"""The connections of this process: their number, fair shares of it, readers that take nothing, and refusals."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network
from itertools import chain
from typing import Any, Protocol

import structlog

from service.api.client_address import client_network, parse_address

STALL_SECONDS = 30.0
"""A reader that takes nothing of a response for this long is disconnected. Slow readers are not."""
REFUSAL_SECONDS = 60.0
"""Requests that uvicorn refuses are counted for this long, and logged in one line per reason."""
_CHECKS_PER_STALL = 6
_BYTES_ACKED = 120
"""Offset of `tcpi_bytes_acked`, 8 bytes, in Linux's `struct tcp_info`."""


class Connection(Protocol):
    """A connection as the table uses it."""

    loop: asyncio.AbstractEventLoop
    progress: "WriteProgress"

    def close_now(self) -> None: ...


class WriteProgress:
    """Measures whether a peer reads the service's output."""

    def __init__(self, transport: Any):
        self._transport = transport
        self._unsent = 0
        self._acknowledged = 0
        self._progress_at: float | None = None

    @property
    def has_unsent(self) -> bool:
        """Whether the transport holds bytes that the kernel has not taken."""
        return bool(self._transport.get_write_buffer_size())

    def stalled_seconds(self, now: float) -> float:
        """Return the time since the last progress that a call of this method observed; 0 if nothing is unsent."""
        unsent = self._transport.get_write_buffer_size()
        if not unsent:
            self._progress_at = None
            return 0.0
        acknowledged = self._read_acknowledged()
        if self._progress_at is None or acknowledged > self._acknowledged or unsent < self._unsent:
            self._progress_at = now
        self._unsent, self._acknowledged = unsent, acknowledged
        return now - self._progress_at

    def _read_acknowledged(self) -> int:
        """Return the bytes that the peer has acknowledged; 0 if the system does not provide their number.

        The transport's buffer alone does not show slow readers: the kernel takes more only once much of its own
        buffer, which has up to several MiB, is empty.
        """
        try:
            info = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        except (OSError, AttributeError):
            return 0
        return int(struct.unpack_from("=Q", info, _BYTES_ACKED)[0]) if len(info) >= _BYTES_ACKED + 8 else 0


class ConnectionTable:
    """The connections of this process, with fair shares of their number."""

    def __init__(
        self,
        limit: int,
        per_address: int,
        exempt: Sequence[IPv4Network | IPv6Network],
        stall_seconds: float = STALL_SECONDS,
    ):
        """
        Args:
            limit: Maximum number of connections.
            per_address: Maximum number of connections per IPv4 address or IPv6 /64 network.
            exempt: Networks without a limit for each address.
            stall_seconds: Maximum time without progress of a reader.
        """
        self._limit = limit
        self._per_address = per_address
        self._exempt = exempt
        self._stall_seconds = stall_seconds
        self._counts: dict[str, int] = {}
        self._open: dict[Connection, None] = {}
        self._check_timer: asyncio.TimerHandle | None = None
        self.idle: dict[Connection, None] = {}
        """Connections without a request in progress, the longest idle first."""
        self._stalled: dict[Connection, None] = {}
        """Connections whose reader took nothing between two checks, the longest stalled first."""
        self._refusals: Counter[str] = Counter()

    def admit(self, address: str, total: int) -> bool:
        """Count a new connection; return whether it may stay open.

        At the limit, another connection is closed instead of the new one: the longest stalled, else the longest idle.
        Such connections of a client can therefore not exclude other clients, whatever their addresses.
        """
        key = client_network(address)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] > self._per_address and not self._is_exempt(address):
            return False
        if total <= self._limit:
            return True
        drained = (connection for connection in self.idle if not connection.progress.has_unsent)
        replaced = next(chain(self._stalled, drained, self.idle), None)
        if replaced is not None:
            replaced.close_now()
        return replaced is not None

    def forget(self, address: str) -> None:
        """Count the end of a connection."""
        key = client_network(address)
        self._counts[key] = self._counts.get(key, 0) - 1
        if self._counts[key] <= 0:
            del self._counts[key]

    def watch(self, connection: Connection) -> None:
        """Check regularly that the reader of a connection makes progress."""
        self._open[connection] = None
        if self._check_timer is None:
            self._schedule_check(connection.loop)

    def unwatch(self, connection: Connection) -> None:
        """End the checks of a connection."""
        self._open.pop(connection, None)
        self._stalled.pop(connection, None)

    def _schedule_check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_timer = loop.call_later(self._stall_seconds / _CHECKS_PER_STALL, self._check_readers, loop)

    def _check_readers(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_timer = None
        now = loop.time()
        for connection in list(self._open):
            stalled = connection.progress.stalled_seconds(now)
            if not stalled:
                self._stalled.pop(connection, None)
            elif stalled < self._stall_seconds:
                self._stalled.setdefault(connection)
            else:
                connection.close_now()
        if self._open:
            self._schedule_check(loop)

    def count_refusal(self, reason: str, loop: asyncio.AbstractEventLoop) -> None:
        """Count a refused request; `reason` must be one of a few constants."""
        if not self._refusals:
            loop.call_later(REFUSAL_SECONDS, self._log_refusals)
        self._refusals[reason] += 1

    def _log_refusals(self) -> None:
        refusals, self._refusals = self._refusals, Counter()
        for reason, count in refusals.items():
            structlog.get_logger("http").warning("refused", reason=reason, count=count, seconds=REFUSAL_SECONDS)

    def _is_exempt(self, text: str) -> bool:
        address = parse_address(text)
        if address is None:
            return True
        return address.is_loopback or any(address in network for network in self._exempt)
