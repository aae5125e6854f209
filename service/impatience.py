"""Connections that bring no request are closed, and no more than so many are open: they cost nobody but us."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""From the connection, or from the end of the answer before, to the whole head of a request."""


def protocol(limit: int, seconds: float = HEAD_SECONDS) -> type[H11Protocol]:
    """uvicorn's protocol with both bounds.

    Args:
        limit: connections of this process.
    """

    class Impatient(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limit:
                transport.abort()
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """The clock runs while no request is under way; bytes that make none do not stop it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self._give_up)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.abort()

    return Impatient
