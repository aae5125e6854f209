"""Detects ranks that slow all others down, and reports them with their nodes."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from worker.core.distributed import Ranks
from worker.reporting.reporter import Reporter

FACTOR = 3.0
"""A straggler takes this many times the median of the ranks for its own part of a step."""
MIN_SECONDS = 60.0
"""A straggler is reported after it was slow for this long without interruption."""
_MIN_SHARE = 0.1
"""The smallest part of a step that a straggler must cost the other ranks."""


@dataclass(frozen=True)
class Straggler:
    rank: int
    factor: float
    """Its own seconds per step, divided by the median of the ranks; with two ranks, by the other rank's seconds."""


class StragglerDetector:
    """Reports every straggler once per execution. Pure: the caller adds the time."""

    def __init__(self) -> None:
        self._slow_seconds: dict[int, float] = {}
        self._reported: set[int] = set()

    def add(self, rank_seconds: Sequence[float], step_seconds: float, elapsed: float) -> list[Straggler]:
        """Add an interval and return the new stragglers.

        Args:
            rank_seconds: By rank: seconds per step in which the rank waits for no other.
            step_seconds: Seconds of a whole step.
            elapsed: Seconds since the last call.
        """
        typical = min(rank_seconds) if len(rank_seconds) == 2 else median(rank_seconds)
        limit = max(FACTOR * typical, typical + _MIN_SHARE * step_seconds)
        slow = [rank for rank, seconds in enumerate(rank_seconds) if seconds > limit]
        self._slow_seconds = {rank: self._slow_seconds.get(rank, 0.0) + elapsed for rank in slow}
        new = [rank for rank in slow if self._slow_seconds[rank] >= MIN_SECONDS and rank not in self._reported]
        self._reported.update(new)
        return [Straggler(rank, rank_seconds[rank] / max(typical, 1e-6)) for rank in new]


class StragglerReporter:
    """Reports stragglers as events of the run."""

    def __init__(self, ranks: Ranks, reporter: Reporter) -> None:
        """A collective, in which every rank states its node."""
        self._reporter = reporter
        self._detector = StragglerDetector()
        self._nodes = ranks.gather_text(os.environ.get("SLURMD_NODENAME") or socket.gethostname())

    def add(self, rank_seconds: Sequence[float], step_seconds: float, elapsed: float) -> None:
        """Add an interval, as `StragglerDetector.add`."""
        for straggler in self._detector.add(rank_seconds, step_seconds, elapsed):
            node, factor = self._nodes[straggler.rank], round(straggler.factor, 1)
            self._reporter.event(
                "straggler",
                f"rank {straggler.rank} on {node} takes {factor:g} times as long as the other ranks for data and "
                "forward; check the node's processors, clocks and disk",
                level="warning",
                data={"rank": straggler.rank, "node": node, "factor": factor},
            )
