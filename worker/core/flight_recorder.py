"""torch's flight recorder: the latest collectives of a rank, which show where the ranks of a stalled run differ.

torch itself writes them when a collective fails or times out. The launcher ends a stalled run earlier than that.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Seconds between two checks for the launcher's announcement of a stall."""


def write_on_stall(layout: AttemptLayout, rank: int, *, poll_seconds: float = POLL_SECONDS) -> threading.Thread:
    """Start a thread that writes the rank's file as soon as the launcher has announced a stall."""
    path = RunLayout(layout.root.parent.parent).flight_records(layout.root.name) / f"rank_{rank}"

    def wait_and_write() -> None:
        while not layout.stalled.exists():
            time.sleep(poll_seconds)
        write_record(path)

    thread = threading.Thread(target=wait_and_write, name="flight-recorder", daemon=True)
    thread.start()
    return thread


def write_record(path: Path) -> None:
    """Write the collectives that this process remembers, as `torchfrtrace` reads them."""
    from torch._C import _distributed_c10d

    source: Any = _distributed_c10d
    # torch records NCCL's collectives separately, and has the function only if it is built with NCCL.
    dump = getattr(source, "_dump_nccl_trace", source._dump_fr_trace)
    try:
        write_atomic(path, dump())
    except OSError as error:
        log.warning("the flight record cannot be written: %s", error)
