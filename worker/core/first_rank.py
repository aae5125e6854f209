"""Work that the first rank does for all ranks, while the others wait and report this."""

import time
from collections.abc import Callable

from worker.core.distributed import Ranks
from worker.core.errors import RefusedError

_SECONDS = 2.0
"""Seconds between two messages of the first rank that it still works."""
_WORKING, _DONE = 0, 1


class FirstRank:
    """Computes a text on the first rank and returns it on all.

    The others mark progress only when the first rank does, so that the watchdog notices if the first rank stalls.
    """

    def __init__(self, ranks: Ranks, mark: Callable[[], None]) -> None:
        self._ranks = ranks
        self._mark = mark
        self._working = False
        self._notified = 0.0

    def on_progress(self) -> None:
        """Mark progress; called by the first rank now and then while it works."""
        self._mark()
        if self._working and self._ranks.is_first and time.monotonic() - self._notified > _SECONDS:
            self._ranks.from_rank_0(_WORKING)
            self._notified = time.monotonic()

    def share(self, compute: Callable[[], str]) -> str:
        """Return on every rank the result of `compute` on the first rank. A collective.

        Raises:
            RefusedError: On every rank, if `compute` raised it.
        """
        if self._ranks.world == 1:
            return compute()
        outcome: tuple[str, RefusedError | None] = ("", None)
        if self._ranks.is_first:
            self._working, self._notified = True, time.monotonic()
            try:
                outcome = (compute(), None)
            except RefusedError as error:
                outcome = ("", error)
            finally:
                self._working = False
            self._ranks.from_rank_0(_DONE)
        else:
            while self._ranks.from_rank_0(_WORKING) != _DONE:
                self._mark()
        text, refusal = outcome if self._ranks.is_first else ("", None)
        shared = self._ranks.broadcast((text, None if refusal is None else (str(refusal), refusal.hint)))
        if refusal is not None:
            raise refusal
        if shared[1] is not None:
            raise RefusedError(*shared[1])
        return str(shared[0])
