"""Programs that stand still: for minutes, no process of theirs computes, reads, writes, prints or logs, on any node.

A program of the task `script` need not report progress, so the launchers watch what the kernel counts. A collective of
NCCL that hangs keeps a processor and a GPU busy; it is not found here. Imports no torch.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.sections import Health
from trainyard.progress_file import ProgressRecord
from worker.core import processes
from worker.launcher.nodes import Node
from worker.launcher.stall_verdict import Evidence, Verdict, judge_program
from worker.launcher.watchdog import Recovery, Stall, Suspicion

log = logging.getLogger(__name__)

IDLE_MINUTES = 10.0
"""Default of `health.idle_minutes`."""
READ_SECONDS = 10.0
MAX_SHARE = 0.01
"""The part of a processor that the processes of a rank use at most while they stand still: threads of libraries that
wake up to look at something."""
TICK_SECONDS = 0.01
"""The kernel counts the processor time of a process in ticks of this length, by user and system."""
MAX_BYTES_PER_SECOND = 4096
"""Bytes that the processes of a node read and write while they stand still."""
MAX_GPU_PERCENT = 1.0
_MIN_PUBLISHED_SECONDS = 30.0
_REMOTE = frozenset({"docker", "kubectl", "podman", "srun", "ssh"})
"""Programs whose work is done by processes that are not below them, whose counters are not known here."""


@dataclass(frozen=True)
class Counters:
    """What the program of a node has used and produced so far."""

    processor_seconds: float
    transferred: int
    """Bytes that its processes read and wrote, from files, pipes and terminals."""
    output: int
    """Bytes of the ranks' logs."""
    points: int
    """Points that its trackers logged."""
    gpu_percent: float
    """The highest utilisation of a GPU at the last reading."""
    ranks: int
    is_remote: bool = False
    """Whether a process has others work for it that are not counted."""


def read_counters(torchrun: int, logs: Iterable[Path], points: int, gpu_percent: float) -> Counters:
    """Read the counters of the ranks below torchrun, and of the processes that they have started."""
    below = [pid for pid, _ in processes.descendants(torchrun)]
    usages = [processes.usage(pid) for pid in below]
    output = 0
    for path in logs:
        with contextlib.suppress(OSError):
            output += path.stat().st_size
    return Counters(
        processor_seconds=sum(seconds for seconds, _ in usages),
        transferred=sum(transferred for _, transferred in usages),
        output=output,
        points=points,
        gpu_percent=gpu_percent,
        ranks=len(processes.children(torchrun)),
        is_remote=any(processes.name_of(pid) in _REMOTE for pid in below),
    )


def works(before: Counters, after: Counters, seconds: float) -> bool:
    """Return whether the program did anything between two readings, as far as it is known.

    The counters of a process that has ended move to its parent, or are lost; what falls counts as work. So does the
    time in which torchrun has not started the ranks.
    """
    used = after.processor_seconds - before.processor_seconds
    # Between two readings that are near to each other, a single tick would be work.
    idle = max(1, after.ranks) * max(MAX_SHARE * seconds, 2 * TICK_SECONDS)
    moved = after.transferred - before.transferred
    return (
        after.ranks == 0
        or after.is_remote
        or not 0 <= used <= idle
        or not 0 <= moved <= MAX_BYTES_PER_SECOND * seconds
        or (after.output, after.points) != (before.output, before.points)
        or after.gpu_percent > MAX_GPU_PERCENT
    )


class IdleWatch:
    """Measures how long the program has stood still on this node; on node 0, on all nodes."""

    def __init__(
        self,
        layout: AttemptLayout,
        node: Node,
        health: Health,
        read: Callable[[], Counters],
        records: Callable[[], Mapping[int, ProgressRecord]],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            read: Reads the counters of this node.
            records: Reads the progress records of the ranks. A program that writes them is ended by these alone.
        """
        self._layout = layout
        self._node = node
        self._limit = 60.0 * (IDLE_MINUTES if health.idle_minutes is None else health.idle_minutes)
        minutes = health.stall_timeout_minutes
        self._timeout = None if minutes is None else 60.0 * minutes
        self._seconds = min(READ_SECONDS, min(self._limit, self._timeout or self._limit) / 4)
        self._read = read
        self._records = records
        self._now = now
        self._last: tuple[float, Counters] | None = None
        self._worked = now()
        self._is_suspected = False
        self._is_published = False

    def add_suspension(self, seconds: float) -> None:
        """Exclude a time in which the job was suspended, or the launcher blocked."""
        self._worked += seconds
        if self._last is not None:
            self._last = self._last[0] + seconds, self._last[1]

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the verdict on a suspicion, from the processes alone."""
        return judge_program(evidence.states)

    def poll(self) -> Stall | Suspicion | Recovery | None:
        """Return what has changed, if anything has; None on other nodes, whose files state that they stand still."""
        now = self._now()
        if self._last is not None and now - self._last[0] < self._seconds:
            return None
        counters, last = self._read(), self._last
        self._last = now, counters
        if last is None or works(last[1], counters, now - last[0]):
            return self._note_work(now)
        if not self._node.is_first:
            if not self._is_published and now - self._worked >= min(_MIN_PUBLISHED_SECONDS, self._limit / 2):
                self._publish()
            return None
        if not all(self._layout.idle(other).exists() for other in range(1, self._node.count)):
            return self._note_work(now)
        return self._judge(now - self._worked)

    def _judge(self, seconds: float) -> Stall | Suspicion | None:
        if self._timeout is not None and seconds > self._timeout and not self._records():
            return Stall((), f"the program stood still for {seconds:.0f} seconds: {_NOTHING}", hint=_HINT)
        if self._is_suspected or seconds <= self._limit:
            return None
        self._is_suspected = True
        return Suspicion({}, seconds, self._limit, f"The program has stood still for {_duration(seconds)}")

    def _note_work(self, now: float) -> Recovery | None:
        seconds, self._worked = now - self._worked, now
        was_suspected, self._is_suspected = self._is_suspected, False
        if self._is_published:
            self._is_published = False
            with contextlib.suppress(OSError):
                self._layout.idle(self._node.index).unlink(missing_ok=True)
        return Recovery(seconds, "The program works again") if was_suspected else None

    def _publish(self) -> None:
        try:
            self._layout.idle(self._node.index).touch()
            self._is_published = True
        except OSError as error:
            log.warning("the file that reports the standing program to node 0 cannot be written: %s", error)


_NOTHING = "no process used a processor or a GPU, read, wrote or printed anything"
_HINT = "If the program may wait for this long, raise health.stall_timeout_minutes."


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
