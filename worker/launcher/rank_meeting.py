"""Observes from outside whether a program's ranks have met. Ranks that never meet each train a copy of the model."""

import os
import time
from collections.abc import Callable

from trainyard.contract.wire.launch import LaunchDocument
from worker.core import processes
from worker.launcher.nodes import Node

EVENT = "ranks_never_met"
PATIENCE_SECONDS = 180.0
"""How long ranks may take to import their libraries and load their data before they meet."""
_SHORT_SECONDS = 30.0
"""Ranks of a program that ends earlier may have met between two polls."""
_POLL_SECONDS = 1.0


class RankMeeting:
    """Whether the ranks of a node have met: a torch process group connects each of them to the store at `MASTER_PORT`.

    If only some ranks have connected, they wait for the others; `health.stall_timeout_minutes` covers this stall.
    """

    def __init__(self, ranks: int, warn: Callable[[str], None], *, now: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            ranks: Number of all ranks.
            warn: Called once at most, with the warning.
        """
        self._ranks = ranks
        self._warn = warn
        self._now = now
        self._started: float | None = None
        self._polled = float("-inf")
        self._is_decided = False

    @classmethod
    def of(cls, launch: LaunchDocument, node: Node, warn: Callable[[str], None]) -> "RankMeeting | None":
        """Return the observer of a program; None where ranks need not meet, or another node watches them."""
        ranks = launch.nodes * launch.processes_per_node
        return cls(ranks, warn) if ranks > 1 and launch.is_distributed and node.is_first else None

    def poll(self) -> None:
        """Look for a connection of a rank to the store, and warn if there has been none for long."""
        now = self._now()
        if self._is_decided or now - self._polled < _POLL_SECONDS:
            return
        self._polled = now
        ranks = [pid for pid, _ in processes.descendants(os.getpid()) if processes.rank_of(pid) is not None]
        if not ranks:
            return
        self._started = now if self._started is None else self._started
        if any(_has_met(pid) for pid in ranks):
            self._is_decided = True
        elif now - self._started > PATIENCE_SECONDS:
            self._decide(f"in {PATIENCE_SECONDS / 60:.0f} minutes")

    def close(self) -> None:
        """The program has ended."""
        if self._started is not None and not self._is_decided and self._polled - self._started > _SHORT_SECONDS:
            self._decide("until their end")

    def _decide(self, when: str) -> None:
        self._is_decided = True
        self._warn(
            f"{self._ranks} ranks have not met {when}: none has connected to the others through torch.distributed. "
            "Each works by itself, so a program that trains a model trains copies of it. To train one model, let the "
            "program use all devices (torch.distributed.init_process_group, or devices and nodes of its trainer), or "
            "start it once (--per job, launch.per: job)"
        )


def _has_met(pid: int) -> bool:
    port = processes.environment_variable(pid, "MASTER_PORT") or ""
    return port.isdecimal() and processes.is_connected_to(pid, int(port))
