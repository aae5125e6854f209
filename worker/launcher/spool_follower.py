"""Sends the spool of a node's current execution, and begins the next execution's spool after an in-place restart."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from trainyard.contract.layout import AttemptLayout
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender

_CLOSING_SECONDS = 0.5


class SpoolFollower:
    """Sends the spool of the current execution, after the spools of earlier executions."""

    def __init__(self, layout: AttemptLayout, connect: Callable[[], ServiceClient], node: int | None) -> None:
        """
        Args:
            node: The node whose tracker spools are sent; None: the spools of `trainyard.script`.
        """
        self._layout = layout
        self._connect = connect
        self._node = node
        self._path = Path()
        self._size = 0
        self._sender: SpoolSender | None = None

    def begin(self, execution: int) -> None:
        self.close(_CLOSING_SECONDS)
        layout, node = self._layout, self._node
        self._path = layout.spool_file(execution) if node is None else layout.tracker_spool(execution, node)
        self._size = 0
        self._sender = SpoolSender(layout, execution, self._connect, node=node)
        self._sender.start()

    def wake(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            size = self._path.stat().st_size
            if self._sender and size != self._size:
                self._size = size
                self._sender.wake()

    def close(self, timeout: float) -> None:
        if self._sender:
            self._sender.close(timeout)
            self._sender = None
