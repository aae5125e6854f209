"""The ranks' agreement between two steps: whether to stop, and which trace to record.

An agreement costs the latency of a reduction, which short steps would show. So the ranks agree only every few steps,
from the time of a step of the slowest rank, which is part of the agreement itself: the ranks never differ in it.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from worker.core.distributed import Ranks
from worker.core.stop_signal import StopSignal

PERIOD_SECONDS = 0.5
"""A stop request takes effect within about this time, or within one step where a step takes longer."""
MAX_STEPS = 10
"""The most steps between two agreements, so that a sudden slowdown does not make that time long."""


def no_profile_request() -> int:
    """Return 0: no trace was requested."""
    return 0


class StepSync:
    """Called by every rank once between any two steps."""

    def __init__(
        self,
        ranks: Ranks,
        stop: StopSignal,
        profile_request: Callable[[], int] = no_profile_request,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`profile_request` returns the number of the latest trace request that this rank knows; 0 for none."""
        self._ranks = ranks
        self._stop = stop
        self._request = profile_request
        self._now = now
        self._since = now()
        self._steps = 0
        """Calls since the last agreement, this one included."""
        self._next = 1
        self.profile_request = 0
        """The number of the latest trace request that all ranks know of."""

    def should_stop(self) -> bool:
        """Return whether any rank has a stop request: the same answer on every rank. Sometimes a collective."""
        self._steps += 1
        if self._steps < self._next:
            return False
        now = self._now()
        step_seconds = (now - self._since) / self._steps
        own = [int(self._stop.requested), self._request(), max(1, int(step_seconds * 1e6))]
        stop, self.profile_request, microseconds = self._maximum(own)
        self._since, self._steps = now, 0
        self._next = steps_until_sync(microseconds / 1e6)
        return bool(stop)

    def _maximum(self, own: list[int]) -> list[int]:
        if self._ranks.world == 1:
            return own
        values = torch.tensor(own, dtype=torch.int64)
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self._ranks.bookkeeping)
        maximum: list[int] = values.tolist()
        return maximum


def steps_until_sync(step_seconds: float) -> int:
    """Return the number of steps from one agreement to the next, from the slowest rank's seconds per step."""
    return max(1, min(MAX_STEPS, int(PERIOD_SECONDS / step_seconds)))
