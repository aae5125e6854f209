"""What all ranks agree on between two steps: whether to stop, and which trace to take. One reduction, not waited for.

The reduction that one boundary begins is read at the next: a short step does not pay for its latency. Steps that take
long get a fresh one instead, whose cost is nothing beside them, so that a wish never waits for a long step in vain.
Which of the two it is follows from what was agreed before: the ranks never differ.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from worker.distributed import Ranks
from worker.signals import StopSignal

LONG_STEP_MILLISECONDS = 20


def no_request() -> int:
    return 0


class Boundary:
    """Called once between any two steps, by every rank."""

    def __init__(
        self,
        ranks: Ranks,
        stop: StopSignal,
        profile_request: Callable[[], int] = no_request,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranks = ranks
        self._stop = stop
        self._request = profile_request
        self._now = now
        self._since = now()
        self._pending: tuple[torch.Tensor, dist.Work] | None = None
        self.profile_request = 0
        """The number of the last trace asked for that all ranks know of."""

    def agreed(self) -> bool:
        """Whether any rank wants to stop: the same answer on every rank. A collective."""
        now = self._now()
        took, self._since = now - self._since, now
        own = [int(self._stop.wanted), self._request(), int(took * 1000)]
        if self._ranks.world > 1:
            own = self._meet(own)
        stop, self.profile_request, _ = own
        return bool(stop)

    def leave(self) -> None:
        """After the last step: what was begun ends. A collective."""
        self._finish()

    def _meet(self, own: list[int]) -> list[int]:
        found = self._finish()
        if found is None or found[2] >= LONG_STEP_MILLISECONDS:
            self._begin(own)
            found = self._finish()
            assert found is not None
        if not found[0] and found[2] < LONG_STEP_MILLISECONDS:
            self._begin(own)
        return found

    def _begin(self, own: list[int]) -> None:
        wishes = torch.tensor(own, dtype=torch.int64)
        work = dist.all_reduce(wishes, dist.ReduceOp.MAX, group=self._ranks.bookkeeping, async_op=True)
        assert work is not None
        self._pending = wishes, work

    def _finish(self) -> list[int] | None:
        if self._pending is None:
            return None
        wishes, work = self._pending
        self._pending = None
        work.wait()
        found: list[int] = wishes.tolist()
        return found
