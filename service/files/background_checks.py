"""Checks of received files, each of which may take longer than one request."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from service.db.models import DataFile

_THREADS = 2


class BackgroundChecks:
    """Runs the check of each upload once, however often it is requested meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[DataFile]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def start(self, upload_id: str, check: Callable[[], DataFile]) -> "Future[DataFile]":
        """Return the running check of an upload, or start it, in the context of the current request."""
        with self._lock:
            if upload_id in self._running:
                return self._running[upload_id]
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="file-check")
            future = self._pool.submit(contextvars.copy_context().run, check)
            self._running[upload_id] = future
        future.add_done_callback(lambda _: self._forget(upload_id))
        return future

    def _forget(self, upload_id: str) -> None:
        with self._lock:
            self._running.pop(upload_id, None)
