"""Detects ranks that make no progress, from their progress files. Imports no torch."""

import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.reports import Failure
from trainyard.progress_file import ProgressRecord, interval, read_progress
from worker.launcher.stall_limits import LearnedLimits, group_of
from worker.launcher.stall_verdict import Evidence, Verdict, judge, position

log = logging.getLogger(__name__)

STACKS = signal.SIGUSR1
"""On this signal every rank writes its Python stacks to its log, whatever it is doing."""

START_GRACE_SECONDS = 600.0
"""Seconds added to the timeout for imports, data, the first step's compilation, and reading or writing large files."""
DIFFERENT_COLLECTIVES = "DifferentCollectives"
"""The type of the failure where ranks are in different collectives."""
_STACK_BYTES = 60_000
_SLOW_PHASES = frozenset({"starting", "saving", "exporting", "ending"})

_HINT = (
    "The log of each rank ends with its stack. A single rank that is behind usually waits for a file, a lock or a "
    "device; if all ranks are in a collective, check the network. If a step may take this long, "
    "raise health.stall_timeout_minutes."
)


@dataclass(frozen=True)
class Stall:
    """A run without progress, and the ranks that are behind."""

    behind: tuple[int, ...]
    message: str
    host: str | None = None
    """The node of the first rank that is behind, if its progress record names it."""
    hint: str = _HINT
    type: str = "Stalled"
    """The type of the failure."""


@dataclass(frozen=True)
class Suspicion:
    """A run that has stood still for longer than it ever takes. It goes on, or becomes a stall."""

    records: Mapping[int, ProgressRecord]
    seconds: float
    limit: float
    title: str
    """What is suspected, in a few words."""


@dataclass(frozen=True)
class Recovery:
    """A suspected run that makes progress again."""

    seconds: float
    """How long it stood still."""
    title: str = "The ranks make progress again"


@dataclass(frozen=True)
class LimitChange:
    """A new limit of a group of phases."""

    group: str
    seconds: float


def detect_stall(
    records: Mapping[int, ProgressRecord], seconds_without_progress: float, timeout: float, world: int
) -> Stall | None:
    """Return the stall, if the run is stalled.

    Args:
        records: The latest progress record of each rank that has written any, by rank.
        seconds_without_progress: Seconds since any of the records last changed.
        timeout: Seconds that a run may make no progress.
        world: How many ranks write records; 0 where that is unknown.
    """
    if not records or seconds_without_progress <= allowance(records, timeout):
        return None
    last = behind(records, world)
    record = records.get(last[0]) if last else None
    message = _message(records, last, seconds_without_progress, world)
    return Stall(tuple(last), message, (record.host if record is not None else None) or None)


def allowance(records: Mapping[int, ProgressRecord], timeout: float) -> float:
    """Return the seconds without progress that the current phases allow."""
    slow = any(record.phase in _SLOW_PHASES for record in records.values())
    return timeout + (START_GRACE_SECONDS if slow else 0.0)


def behind(records: Mapping[int, ProgressRecord], world: int) -> list[int]:
    """Return the ranks that the others wait for: ranks without a record, else ranks with the first position, else ranks
    outside torch while others are inside. Empty if nothing distinguishes the ranks."""
    missing = [rank for rank in range(world) if rank not in records]
    if missing:
        return missing
    first = min(record.position for record in records.values())
    last = [rank for rank, record in sorted(records.items()) if record.position == first]
    if len(last) < len(records):
        return last
    outside = [rank for rank in last if not records[rank].in_torch]
    return outside if len(outside) < len(last) else []


def _message(
    records: Mapping[int, ProgressRecord], last: list[int], seconds_without_progress: float, world: int
) -> str:
    head = f"no rank made progress for {seconds_without_progress:.0f} seconds"
    if not last:
        any_record = records[min(records)]
        return f"{head}; all {len(records)} are {position(any_record)}"
    behind_them = "; ".join(f"rank {rank} is behind, {position(records.get(rank))}" for rank in last[:8])
    others = [rank for rank in sorted(records) if rank not in last]
    waiting = f"; the others wait {position(records[others[0]])}" if others else ""
    return f"{head}: {behind_them}{waiting}"


class Watchdog:
    """Compares the progress records of all ranks between polls, by its own clock."""

    def __init__(
        self,
        layout: AttemptLayout,
        world: int,
        timeout: float,
        execution: Callable[[], int],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._world = world
        self._timeout = timeout
        self._execution = execution
        self._now = now
        self._limits = LearnedLimits()
        self._previous: tuple[int, dict[int, ProgressRecord]] = (0, {})
        self._moved = now()
        self._polled = 0.0
        self._is_suspected = False

    def add_suspension(self, seconds: float) -> None:
        """Exclude a time in which no poll was possible: the job was suspended, or the disk was slow."""
        self._moved += seconds

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on a suspicion, about the ranks that the others wait for."""
        return judge(behind(evidence.records, self._world), evidence)

    def poll(self) -> Stall | Suspicion | Recovery | LimitChange | None:
        """Return what has changed, if anything has. Reads the files only once per interval."""
        now = self._now()
        if now - self._polled < interval(self._timeout):
            return None
        self._polled = now
        execution = self._execution()
        records = read_progress(self._layout.progress, execution)
        before, last = self._previous
        self._previous = (execution, records)
        if before != execution or _marks(last) != _marks(records):
            return self._note_progress(last if before == execution else {}, now)
        seconds = now - self._moved
        if stall := detect_stall(records, seconds, self._timeout, self._world):
            return stall
        limit = self._limits.limit(group_of(records.values()))
        if self._is_suspected or limit is None or not limit < seconds or not records:
            return None
        self._is_suspected = True
        title = f"No progress for {seconds:.0f} s"
        return Suspicion(records, seconds, limit, title)

    def _note_progress(self, last: Mapping[int, ProgressRecord], now: float) -> Recovery | LimitChange | None:
        """Learn the time that the ranks stood still in the phases that they had, and measure from now on."""
        seconds, self._moved = now - self._moved, now
        was_suspected, self._is_suspected = self._is_suspected, False
        group = group_of(last.values())
        if last:
            self._limits.learn(group, seconds)
        if was_suspected:
            return Recovery(seconds)
        changed = self._limits.changed(group) if last else None
        return LimitChange(group, changed) if changed is not None else None


def _marks(records: Mapping[int, ProgressRecord]) -> dict[int, tuple[int, str]]:
    return {rank: (record.marks, record.phase) for rank, record in records.items()}


def publish(layout: AttemptLayout, stall: Stall) -> None:
    """Announce the stall to the other nodes, whose ranks write their stacks too."""
    write_atomic(layout.stalled, stall.message)


def size_of(log: Path) -> int:
    """Return the bytes of a rank's log."""
    return log.stat().st_size if log.is_file() else 0


def stack_after(log: Path, end: int) -> str:
    """Return the content of a rank's log after position `end`; the stacks come first."""
    try:
        with log.open("rb") as file:
            file.seek(end)
            return file.read(_STACK_BYTES).decode(errors="replace")
    except OSError:
        return ""


def to_failure(stall: Stall, stack: str, *, final: bool = False) -> Failure:
    """Return the stall as a failure for the exit record.

    Args:
        stack: The stack of the first rank that is behind.
        final: Whether the run would stall again.
    """
    rank, message = stall.behind[0] if stall.behind else None, stall.message[:8000]
    return Failure(
        rank=rank, host=stall.host, type=stall.type, message=message, traceback=stack, hint=stall.hint, final=final
    )
