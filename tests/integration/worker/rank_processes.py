"""Waits for the ranks that a test has started."""

import multiprocessing.connection
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess


def wait_for_all(ranks: Sequence[BaseProcess], limit: float) -> None:
    """Wait until all processes have ended, one has failed, or the time limit has passed."""
    left = {rank.sentinel: rank for rank in ranks}
    while left and time.monotonic() < limit:
        for ended in multiprocessing.connection.wait(left, limit - time.monotonic()):
            rank = left.pop(ended)  # type: ignore[arg-type]
            # A process closes its sentinel before it has ended; with a context on a GPU that takes a while.
            rank.join(max(0.0, limit - time.monotonic()))
            if rank.exitcode != 0:
                return
