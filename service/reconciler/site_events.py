"""Ends of attempts that the cluster causes: the job is not to blame and waits, each time longer. Pure functions."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from service.db.models import Attempt

SITE_REASONS = frozenset({"preempted", "node_failure", "cancelled_outside"})
"""Exit reasons that the cluster causes, or that nobody knows."""
STEADY = timedelta(minutes=10)
"""An attempt that ran this long has shown that the job can run here."""
_FIRST_WAIT, _MAX_WAIT = timedelta(minutes=1), timedelta(minutes=30)
_DOUBLINGS = 5
"""After which the longest wait is reached."""


def wait_after(ends: int) -> timedelta:
    """Return how long the next attempt waits after this many ends in a row. There is no wait after the first end."""
    return min(_FIRST_WAIT * 2 ** min(ends - 2, _DOUBLINGS), _MAX_WAIT) if ends > 1 else timedelta(0)


def ended_by_site(attempts: Sequence[Attempt], step: int | None, since: datetime | None = None) -> list[Attempt]:
    """Return the newest attempts in a row that the cluster ended soon after their start, newest first.

    Args:
        attempts: All attempts of the job. The newest attempt is left out if it has not ended.
        step: The newest step from which the job can continue. An attempt that has brought it ends the row.
        since: The last retry by a user, which ends the row.
    """
    ordered = sorted(attempts, key=lambda attempt: attempt.number, reverse=True)

    def counts(attempt: Attempt) -> bool:
        if attempt.ended_at is None or attempt.exit_reason not in SITE_REASONS:
            return False
        ran = attempt.ended_at - (attempt.claimed_at or attempt.ended_at)
        return ran < STEADY and attempt.checkpoint_step == step and (since is None or attempt.ended_at >= since)

    return list(takewhile(counts, ordered[ordered[0].ended_at is None :] if ordered else []))
