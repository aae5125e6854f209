"""Runs that no longer get on: found by their beats, and told with the rank that was behind. No torch."""

import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.reports import Failure
from trainyard.progress_file import Phase, ProgressRecord, interval, read_progress

log = logging.getLogger(__name__)

STACKS = signal.SIGUSR1
"""On it every rank writes its Python stacks to its log, whatever it is doing."""

START_GRACE_SECONDS = 600.0
"""Beyond the timeout: for imports, data, compilation in the first update, and for large files read or written."""
_STACK_BYTES = 60_000
_SLOW_PHASES = frozenset({"starting", "saving", "exporting", "ending"})

_HINT = (
    "The log of each rank ends with its stack. A rank that is behind alone usually waits for a file, a lock or a "
    "device; where all are in a collective, look at the network. A step that needs longer than this is no stall: "
    "raise health.stall_timeout_minutes."
)


@dataclass(frozen=True)
class Stall:
    """The verdict on a run that stands still."""

    behind: tuple[int, ...]
    message: str


def judge(beats: Mapping[int, ProgressRecord], still_for: float, timeout: float, world: int) -> Stall | None:
    """Whether the run is stalled. Pure.

    Args:
        beats: The latest of each rank that has beaten, by rank.
        still_for: Seconds since any of them last moved.
        timeout: Seconds that a run may stand still.
        world: How many ranks are to beat; 0 where nobody knows.
    """
    if not beats or still_for <= allowance(beats, timeout):
        return None
    return Stall(tuple(behind(beats, world)), _message(beats, behind(beats, world), still_for, world))


def allowance(beats: Mapping[int, ProgressRecord], timeout: float) -> float:
    """Seconds without progress that this run may take where it is now."""
    slow = any(beat.phase in _SLOW_PHASES for beat in beats.values())
    return timeout + (START_GRACE_SECONDS if slow else 0.0)


def behind(beats: Mapping[int, ProgressRecord], world: int) -> list[int]:
    """The ranks that hold the others up: those that never beat, else those that passed the fewest places, else those
    that are in their own code while others are in torch. Empty where nothing tells them apart."""
    silent = [rank for rank in range(world) if rank not in beats]
    if silent:
        return silent
    fewest = min(beat.marks for beat in beats.values())
    last = [rank for rank, beat in sorted(beats.items()) if beat.marks == fewest]
    if len(last) < len(beats):
        return last
    outside = [rank for rank in last if not beats[rank].in_torch]
    return outside if len(outside) < len(last) else []


def _message(beats: Mapping[int, ProgressRecord], last: list[int], still_for: float, world: int) -> str:
    head = f"no rank made progress for {still_for:.0f} seconds"
    if not last:
        any_beat = beats[min(beats)]
        return f"{head}; all {len(beats)} are {_place(any_beat)}"
    told = "; ".join(f"rank {rank} is behind, {_place(beats.get(rank))}" for rank in last[:8])
    others = [rank for rank in sorted(beats) if rank not in last]
    waiting = f"; the others wait {_place(beats[others[0]])}" if others else ""
    return f"{head}: {told}{waiting}"


def _place(beat: ProgressRecord | None) -> str:
    if beat is None:
        return "it never came up"
    where = f", at {beat.where}" if beat.where else ""
    return f"in step {beat.step} ({beat.phase}){where}" if beat.step else f"{beat.phase}{where}"


class Watchdog:
    """Looks at the beats of all ranks; its own clock says how long they have stood still."""

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
        self._seen: tuple[int, dict[int, tuple[int, Phase]]] = (0, {})
        self._moved = now()
        self._looked = 0.0

    def add_suspension(self, seconds: float) -> None:
        """For so long nobody could look: the job was suspended, its ranks with this process, or the disk is slow."""
        self._moved += seconds

    def look(self) -> Stall | None:
        """The verdict as of now; reads files only every so often."""
        now = self._now()
        if now - self._looked < interval(self._timeout):
            return None
        self._looked = now
        execution = self._execution()
        beats = read_progress(self._layout.progress, execution)
        seen = (execution, {rank: (beat.marks, beat.phase) for rank, beat in beats.items()})
        if seen != self._seen:
            self._seen, self._moved = seen, now
        return judge(beats, now - self._moved, self._timeout, self._world)


def publish(layout: AttemptLayout, stall: Stall) -> None:
    """Tell the other nodes, whose ranks have stacks to write too."""
    write_atomic(layout.stalled, stall.message)


def size_of(log: Path) -> int:
    """Bytes of a rank's log, before it is told to write its stacks."""
    return log.stat().st_size if log.is_file() else 0


def stack_after(log: Path, end: int) -> str:
    """What stands in a rank's log after its former end: the stacks first, however much is said before and after."""
    try:
        with log.open("rb") as file:
            file.seek(end)
            return file.read(_STACK_BYTES).decode(errors="replace")
    except OSError:
        return ""


def to_failure(stall: Stall, stack: str) -> Failure:
    """The stall as the finish record tells it; `stack` is that of the rank that was behind."""
    rank = stall.behind[0] if stall.behind else None
    return Failure(rank=rank, type="Stalled", message=stall.message[:8000], traceback=stack, hint=_HINT)
