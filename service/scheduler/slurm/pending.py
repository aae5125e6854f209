"""The status message of a job that is pending in Slurm: reason, queue position and start estimate. Pure functions."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from service.scheduler.base import Observation
from service.scheduler.slurm.commands import Row
from service.scheduler.slurm.reasons import explain, reason_name
from service.scheduler.slurm.states import interpret_state

_NOT_COMPETING = frozenset({"JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied", "BeginTime"})
"""Reasons of pending jobs that block no other job."""
_ROUNDING = ((timedelta(hours=1), 5), (timedelta(hours=6), 15), (timedelta(days=1), 60), (timedelta.max, 360))
"""The unit in minutes to which a start estimate is rounded, by the longest time ahead."""


def needs_other_jobs(rows: Sequence[Row]) -> bool:
    """Whether the jobs of other accounts are needed to count the jobs ahead of our jobs."""
    return any(_waits_for_priority(row) for row in rows)


def count_ahead(mine: Sequence[Row], others: Sequence[Row]) -> dict[str, int]:
    """The number of pending jobs with higher priority in the same partition, by id, for our jobs that wait for it."""
    queues: dict[str, list[tuple[int, int]]] = {}
    for row in [*mine, *others]:
        if _is_pending(row) and reason_name(row.detail) not in _NOT_COMPETING:
            for partition in row.partition.split(","):
                queues.setdefault(partition, []).append(_rank(row))
    for queue in queues.values():
        queue.sort()
    waiting = [row for row in mine if _waits_for_priority(row)]
    return {row.id: bisect_left(queues[row.partition.split(",")[0]], _rank(row)) for row in waiting}


def _is_pending(row: Row) -> bool:
    return interpret_state(row.state)[0] == "pending"


def _waits_for_priority(row: Row) -> bool:
    return reason_name(row.detail) == "Priority" and _is_pending(row)


def _rank(row: Row) -> tuple[int, int]:
    """The sort key of the queue: higher priority first, then the older job."""
    number = row.id.partition("_")[0]
    return -row.priority, int(number) if number.isdigit() else 0


def describe_pending(row: Row, ahead_by_id: Mapping[str, int], now: datetime) -> Observation:
    """The observation of a pending job; `ahead_by_id` has the results of `count_ahead`.

    Numbers are rounded, so that a busy queue does not change the message of every job at each poll.
    """
    sentences = [f"Waiting in Slurm: {explain(row.detail)}"]
    if count := ahead_by_id.get(row.id):
        sentences.append(f"{_rounded_count(count)} ahead in partition {row.partition.split(',')[0]}.")
    start = rounded_start(row.start, now)
    if start is not None:
        sentences.append(f"Slurm estimates the start by {start:%Y-%m-%d %H:%M} UTC.")
    return Observation("pending", " ".join(sentences), estimated_start=start)


def _rounded_count(count: int) -> str:
    """Exact up to ten, then rounded down to one significant digit."""
    if count <= 10:
        return "1 job" if count == 1 else f"{count} jobs"
    unit = 10 ** (len(str(count)) - 1)
    return f"More than {(count - 1) // unit * unit} jobs"


def rounded_start(start: datetime | None, now: datetime) -> datetime | None:
    """Slurm's estimate, rounded up in larger units the later it is; None for a time that has passed."""
    if start is None or start <= now:
        return None
    unit = timedelta(minutes=next(minutes for limit, minutes in _ROUNDING if start - now <= limit))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch - (epoch - start) // unit * unit
