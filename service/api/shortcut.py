"""Requests that are answered at their connection: a task, a scope for the framework and two timers cost more than they.

A request that a shortcut wishes for is held until its body is there, which nearly always is at once, and then offered.
Every other, and whatever the shortcut declines, goes the way of all requests.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from service.api.connection_limits import Quick

Headers = Sequence[tuple[bytes, bytes]]

HOLD_SECONDS = 0.25
"""For the rest of a body. A slower one is the gate's, whose clock then runs."""


class Exchange:
    """One request that has come whole, and the place for its answer. Lives on the event loop."""

    __slots__ = ("_cycle", "body", "scope")

    def __init__(self, cycle: RequestResponseCycle):
        self._cycle = cycle
        self.scope: Any = cycle.scope
        self.body = bytes(cycle.body)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer; goes nowhere when the client has gone."""
        cycle = self._cycle
        if cycle.disconnected:
            return
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
        cycle.transport.write(b"".join(parts))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        cycle.on_response = _nothing  # it holds the connection, which holds the cycle


class Shortcut(Protocol):
    """Answers some requests by itself."""

    def wishes(self, scope: Any) -> bool:
        """Whether this may be one of them, by its head."""
        ...

    def take(self, exchange: Exchange) -> bool:
        """Answer it, now or later; or decline, having done nothing."""
        ...


class Shortened(Quick):
    """The quick protocol, with a shortcut beside its application."""

    shortcut: Shortcut
    _receiving = False
    _held: tuple[RequestResponseCycle, Any] | None = None
    _patience: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._receiving = True
        try:
            super().data_received(data)
        finally:
            self._receiving = False
        if self._held is None:
            return
        if not self._held[0].more_body:
            self._offer()
        elif self._patience is None:
            self._patience = self.loop.call_later(HOLD_SECONDS, self._let_go)
        if self._held is not None:
            self.flow.resume_reading()  # it was paused for a body of more than a few pieces

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # One that had to wait for the answer before it is started from outside, with its body there or not.
        if self._receiving and self.shortcut.wishes(cycle.scope):
            self._held = (cycle, app)
        else:
            super()._start_asgi_task(cycle, app)

    def _offer(self) -> None:
        assert self._held is not None
        if not self.flow.write_paused and self.shortcut.take(Exchange(self._held[0])):
            self._release()
        else:
            self._let_go()

    def _let_go(self) -> None:
        held = self._release()
        if held is not None:
            super()._start_asgi_task(*held)

    def _release(self) -> tuple[RequestResponseCycle, Any] | None:
        held, self._held = self._held, None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        return held


def _nothing() -> None:
    """Nobody waits any more."""


def shortened(way: Shortcut) -> type[Shortened]:
    """The protocol with this shortcut."""

    class Taken(Shortened):
        shortcut = way

    return Taken
