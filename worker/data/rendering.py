"""Measures how long a chat template has been writing the current text: a template with a loop may not end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Rendering:
    """The text that is being written; only one text is written at a time."""

    def __init__(self) -> None:
        self._since: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the time of the block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    @property
    def seconds(self) -> float:
        """The time since the text was begun; 0 if none is being written."""
        return 0.0 if self._since is None else time.monotonic() - self._since


RENDERING = Rendering()
