"""The launcher's part in the trackers of a node: the listener, and a sender for each execution's spool."""

import contextlib
from collections.abc import Callable

from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.launcher.exit_record import last_execution
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender
from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.journal import Journal
from worker.trackers.listener import TrackerListener
from worker.trackers.mlflow import MlflowApi
from worker.trackers.variables import LISTENER_SECRET, LISTENER_URL

_CLOSING_SECONDS = 0.5


class TrackerReports:
    """Receives what the trackers of this node report, and sends it. The port is bound at construction."""

    def __init__(self, layout: AttemptLayout, node: int, first: int, connect: Callable[[], ServiceClient]) -> None:
        self._layout = layout
        self._node = node
        self._first = first
        self._connect = connect
        self._journal = Journal(layout, node)
        artifacts = ArtifactFolder(RunLayout(layout.root.parent.parent).artifacts / "mlflow")
        self._listener = TrackerListener(MlflowApi(self._journal, artifacts).handle)
        self._execution = 0
        self._size = 0
        self._sender: SpoolSender | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the ranks from which `worker.rank` makes those of each tracker."""
        return {LISTENER_URL: self._listener.url, LISTENER_SECRET: self._listener.secret}

    def start(self) -> None:
        """Serve. Called after torchrun was started, since it is forked."""
        self._listener.start()

    def follow(self) -> None:
        """Notice an in-place restart and new records. Called periodically."""
        execution = last_execution(self._layout, self._first)
        path = self._layout.tracker_spool(execution, self._node)
        if execution != self._execution:
            self._close_sender(_CLOSING_SECONDS)
            self._execution, self._size = execution, 0
        with contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size
            if self._sender is None:
                self._sender = SpoolSender(self._layout, execution, self._connect, only=path)
                self._sender.start()
            if size != self._size:
                self._size = size
                self._sender.wake()

    def close(self, timeout: float) -> None:
        """Stop serving, and send the rest for about `timeout` seconds at most."""
        self._listener.close()
        self.follow()
        self._journal.close()
        self._close_sender(timeout)

    def _close_sender(self, timeout: float) -> None:
        if self._sender:
            self._sender.close(timeout)
            self._sender = None
