"""Decides which node follows an event file: on a filesystem that the nodes share, every launcher finds it."""

import hashlib
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, create_exclusive
from worker.core import processes

_OTHERS_SECONDS = 10.0
"""How long a node leaves a file to the node that the file's name contains."""
_WRITER = re.compile(r"tfevents\.\d+\.(.+?)(?:\.(\d+)(?:\.\d+)?(?:\.v2)?)?$")
"""Host and process of the writer, as TensorBoard, torch and TensorFlow name files; tensorboardX gives no process."""


class EventClaims:
    """The files of one node. A file belongs to the first launcher that claims it, preferably on the writer's node."""

    def __init__(
        self, layout: AttemptLayout, node: int, *, shared: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            shared: Whether the attempt has other nodes.
        """
        self._layout = layout
        self._node = node
        self._shared = shared
        self._now = now
        self._host = socket.gethostname()
        self._noticed: dict[Path, float] = {}

    def claim(self, path: Path, *, at_once: bool = False) -> bool | None:
        """Return whether this node follows the file; None: not decided yet.

        Args:
            at_once: Decide now, whichever node wrote the file.

        Raises:
            OSError: The claim cannot be written or read.
        """
        if not self._shared:
            return True
        match = _WRITER.search(path.name)
        since = self._noticed.setdefault(path, self._now())
        own = match is not None and match[1] == self._host
        if not own and not at_once and self._now() - since < _OTHERS_SECONDS:
            return None
        claim = self._layout.event_claim(hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:32])
        return create_exclusive(claim, str(self._node)) or claim.read_text() == str(self._node)

    def rank(self, path: Path) -> int:
        """Return the rank that writes the file, while its process exists; 0 if that is not known."""
        match = _WRITER.search(path.name)
        if match is None or match[1] != self._host or match[2] is None:
            return 0
        return processes.rank_of(int(match[2])) or 0
