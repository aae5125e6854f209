"""Lets the ranks exchange data between two steps: whether to stop, which trace to record, and values of callbacks.

One gather carries all of it. Its latency would show in short steps. So the ranks gather only every few steps, and where
a callback has queued values; while steps are short, they read the values of a gather one step later, when these have
arrived. The ranks decide by the time of a step of the slowest rank, which they gather too, so that they never differ.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from worker.core.distributed import Gather, Ranks
from worker.core.stop_signal import StopSignal

PERIOD_SECONDS = 0.5
"""A stop request takes effect within about this time, or within one step where a step takes longer."""
MAX_STEPS = 10
"""The most steps between two agreements, so that a sudden slowdown does not make that time long."""

_FAILED_SECONDS = 0.5
"""Time for which a rank that fails waits for values that the other ranks have already sent."""

Rows = list[list[float]]
"""Every rank's values, by rank."""
_OWN_VALUES = 3
"""Values of each row that precede the queued values: stop request, trace request, seconds per step."""


def no_profile_request() -> int:
    """Return 0: no trace was requested."""
    return 0


class _QueuedValues(NamedTuple):
    values: Sequence[float]
    deliver: Callable[[Rows], None]


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
        self._signal = stop
        self._request = profile_request
        self._now = now
        self._since = now()
        self._steps = 0
        """Calls of `should_stop` since the last call that gathered, including the current call."""
        self._next = 1
        self._step_seconds = PERIOD_SECONDS
        self._stop = False
        self._queue: list[_QueuedValues] = []
        """Values for the next gather."""
        self._pending: Gather | None = None
        """The gather that is under way."""
        self._carried: list[_QueuedValues] = []
        """The values of callbacks that this gather carries."""
        self.profile_request = 0
        """The number of the latest trace request that all ranks know of."""

    def queue_gather(self, values: Sequence[float], deliver: Callable[[Rows], None]) -> None:
        """Send `values` to all ranks with the next gather, which begins before the next step.

        Every rank queues as many values, at the same steps. `deliver` gets the values of all ranks, in fp64: after
        the coming step at the latest, in the order of the calls. Its exceptions end the run, so it must raise on all
        ranks.
        """
        self._queue.append(_QueuedValues(values, deliver))

    def should_stop(self) -> bool:
        """Return whether any rank has a stop request: the same answer on every rank. Sometimes a collective."""
        self._steps += 1
        self._read()
        if not self._stop and (self._queue or self._steps >= self._next):
            now = self._now()
            self._step_seconds = (now - self._since) / self._steps
            self._since, self._steps = now, 0
            self._begin()
            if self._next < MAX_STEPS or self._ranks.world == 1:
                self._read()
        return self._stop

    def flush(self) -> None:
        """Gather and deliver all queued values. A collective if there are any."""
        self._read()
        if self._queue:
            self._begin()
            self._read()

    @contextlib.contextmanager
    def delivering(self) -> Iterator[None]:
        """Deliver at the end of the context all values that were queued in it.

        After an exception, deliver only values that arrive without the help of the other ranks, so that the last points
        of a run that fails are reported.
        """
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._read(timedelta(seconds=_FAILED_SECONDS))
            raise
        self.flush()

    def _begin(self) -> None:
        own = [float(self._signal.requested), float(self._request()), self._step_seconds]
        self._carried, self._queue = self._queue, []
        queued = (value for carried in self._carried for value in carried.values)
        self._pending = self._ranks.begin_gather([*own, *queued])

    def _read(self, timeout: timedelta | None = None) -> None:
        """Wait for the gather that is under way, and deliver it."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        rows = pending.read(timeout)
        stops, requests, seconds = zip(*(row[:_OWN_VALUES] for row in rows), strict=True)
        self._stop = self._stop or any(stops)
        self.profile_request = int(max(requests))
        self._next = steps_until_sync(max(seconds))
        start = _OWN_VALUES
        for values, deliver in self._carried:
            end = start + len(values)
            deliver([row[start:end] for row in rows])
            start = end


def steps_until_sync(step_seconds: float) -> int:
    """Return the number of steps from one agreement to the next, from the slowest rank's seconds per step."""
    return max(1, min(MAX_STEPS, int(PERIOD_SECONDS / max(step_seconds, 1e-6))))
