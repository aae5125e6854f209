"""What all ranks agree on between two steps: whether to stop, and which trace to take.

Agreeing costs a reduction's latency, which short steps would feel, so they do it only every so many steps: as often as
the time of a step, which is part of what was agreed before, calls for. The ranks never differ in it.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from worker.core.distributed import Ranks
from worker.core.stop_signal import StopSignal

PERIOD_SECONDS = 0.5
"""A wish is heard of within about this time, or one step where steps take longer."""
MOST_STEPS = 10
"""But never so many steps apart that a sudden change of pace would make it long."""


def no_profile_request() -> int:
    return 0


class StepSync:
    """Called once between any two steps, by every rank."""

    def __init__(
        self,
        ranks: Ranks,
        stop: StopSignal,
        profile_request: Callable[[], int] = no_profile_request,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranks = ranks
        self._stop = stop
        self._request = profile_request
        self._now = now
        self._since = now()
        self._steps = 0
        """Boundaries since the last agreement, this one included."""
        self._next = 1
        self.profile_request = 0
        """The number of the last trace asked for that all ranks know of."""

    def should_stop(self) -> bool:
        """Whether any rank wants to stop: the same answer on every rank. Sometimes a collective."""
        self._steps += 1
        if self._steps < self._next:
            return False
        now = self._now()
        step_seconds = (now - self._since) / self._steps
        own = [int(self._stop.wanted), self._request(), max(1, int(step_seconds * 1e6))]
        stop, self.profile_request, microseconds = self._most(own)
        self._since, self._steps = now, 0
        self._next = steps_until_sync(microseconds / 1e6)
        return bool(stop)

    def _most(self, own: list[int]) -> list[int]:
        if self._ranks.world == 1:
            return own
        wishes = torch.tensor(own, dtype=torch.int64)
        dist.all_reduce(wishes, dist.ReduceOp.MAX, group=self._ranks.bookkeeping)
        found: list[int] = wishes.tolist()
        return found


def steps_until_sync(step_seconds: float) -> int:
    """How many steps from one agreement to the next, where the slowest rank's take so long. Pure."""
    return max(1, min(MOST_STEPS, int(PERIOD_SECONDS / step_seconds)))
