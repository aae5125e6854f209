"""How long a run may make no progress before it is suspected to hang, from the waits between its own progress marks."""

from collections import deque
from collections.abc import Iterable

from trainyard.progress_file import ProgressRecord

TRAINING = "training"
COMPILING = "compiling"
MIN_SECONDS = 20.0
"""The lowest limit. The files are written and read every two seconds each."""
MIN_FILE_SECONDS = 120.0
"""The lowest limit of phases in which ranks read or write large files: a filesystem may pause for a minute."""
_TIMES = 8.0
_AFTER_SUSPICION = 1.5
"""The limit after a suspicion that was wrong, as a multiple of the wait: a pause must not hide later ones for long."""
_QUANTILE = 0.99
_REMEMBERED = 1000
_MIN_TRAINING_WAITS = 10
_MIN_WAITS = 5
_FILE_PHASES = ("starting", "ending", "exporting", "saving")
_OWN_PHASES = (*_FILE_PHASES, "reference", "sampling", "evaluating")
"""Phases with a limit of their own, by precedence where ranks differ. The phases of a step share one limit: a step may
be shorter than the time between two readings."""


class LearnedLimits:
    """The waits of a run by the group of its phases, and the limits that follow from them."""

    def __init__(self) -> None:
        self._waits: dict[str, deque[float]] = {}
        self._stated: dict[str, float] = {}

    def learn(self, group: str, seconds: float) -> None:
        """Add the seconds between two changes of the progress, as the launcher observed them."""
        limit = self.limit(group)
        if limit is not None and seconds > limit:
            seconds *= _AFTER_SUSPICION / _TIMES
        self._waits.setdefault(group, deque(maxlen=_REMEMBERED)).append(seconds)

    def limit(self, group: str) -> float | None:
        """Return the limit in seconds: eight times the 99th percentile of the waits; None until enough are known.

        Compilation has none: it happens a few times in a run, and each time takes another time.
        """
        waits = sorted(self._waits.get(group, ()))
        if group == COMPILING or len(waits) < (_MIN_TRAINING_WAITS if group == TRAINING else _MIN_WAITS):
            return None
        lowest = MIN_FILE_SECONDS if group in _FILE_PHASES else MIN_SECONDS
        return max(lowest, _TIMES * waits[int(_QUANTILE * (len(waits) - 1) + 0.5)])

    def changed(self, group: str) -> float | None:
        """Return the limit if it is the group's first, or differs from the last returned one by more than a factor of
        two; else None."""
        limit, stated = self.limit(group), self._stated.get(group)
        if limit is None or (stated is not None and stated / 2 <= limit <= stated * 2):
            return None
        self._stated[group] = limit
        return limit


def group_of(records: Iterable[ProgressRecord]) -> str:
    """Return the group of the ranks' phases; the one with the longest waits where they differ."""
    ranks = list(records)
    if any(record.compiling for record in ranks):
        return COMPILING
    phases = {record.phase for record in ranks}
    return next((phase for phase in _OWN_PHASES if phase in phases), TRAINING)
