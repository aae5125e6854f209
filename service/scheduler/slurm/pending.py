"""A waiting job of Slurm's queue in plain words: why, how many are before it, and when it may begin. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from service.scheduler.base import Observation
from service.scheduler.slurm.commands import Row
from service.scheduler.slurm.reasons import explain, reason_name
from service.scheduler.slurm.states import meaning

_STANDING_BY = frozenset({"JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied", "BeginTime"})
"""Reasons of jobs that are in the queue and before nobody."""


def waits_behind_others(rows: Sequence[Row]) -> bool:
    """Whether it takes the jobs of other accounts to say how many are before one of these."""
    return any(reason_name(row.detail) == "Priority" for row in rows if meaning(row.state)[0] == "pending")


def count_ahead(mine: Sequence[Row], others: Sequence[Row]) -> dict[str, int]:
    """How many waiting jobs of higher priority are in the same partition, by id, for those of ours that wait so."""
    queues: dict[str, list[tuple[int, int]]] = {}
    for row in [*mine, *others]:
        if meaning(row.state)[0] == "pending" and reason_name(row.detail) not in _STANDING_BY:
            for partition in row.partition.split(","):
                queues.setdefault(partition, []).append(_place(row))
    for queue in queues.values():
        queue.sort()
    waiting = [row for row in mine if reason_name(row.detail) == "Priority" and meaning(row.state)[0] == "pending"]
    return {row.id: bisect_left(queues[row.partition.split(",")[0]], _place(row)) for row in waiting}


def _place(row: Row) -> tuple[int, int]:
    """Higher priority first, of equals the older."""
    number = row.id.partition("_")[0]
    return -row.priority, int(number) if number.isdigit() else 0


def waiting(row: Row, ahead: Mapping[str, int], now: datetime) -> Observation:
    """What is known of a pending job. Numbers are rounded, so that a busy queue does not change every job's words."""
    words = [f"waiting for Slurm: {explain(row.detail)}"]
    if count := ahead.get(row.id):
        words.append(f"{_about(count)} before it in partition {row.partition.split(',')[0]}")
    start = rounded_start(row.estimated_start, now)
    if start is not None:
        words.append(f"Slurm expects it to start by {start:%Y-%m-%d %H:%M} UTC")
    return Observation("pending", "; ".join(words), estimated_start=start)


def _about(count: int) -> str:
    """Exact up to ten, then one figure."""
    if count == 1:
        return "1 job is"
    if count <= 10:
        return f"{count} jobs are"
    unit = 10 ** (len(str(count)) - 1)
    return f"more than {(count - 1) // unit * unit} jobs are"


def rounded_start(start: datetime | None, now: datetime) -> datetime | None:
    """Slurm's guess, rounded up the more coarsely the farther it is; None for one that has passed."""
    if start is None or start <= now:
        return None
    ahead = start - now
    minutes = next(unit for limit, unit in _COARSE if ahead <= limit)
    whole = timedelta(minutes=minutes)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch - (epoch - start) // whole * whole


_COARSE = (
    (timedelta(hours=1), 5),
    (timedelta(hours=6), 15),
    (timedelta(days=1), 60),
    (timedelta.max, 360),
)
"""How far ahead at most, and the minutes to which it is rounded."""
