"""Chooses the steps at which memory checkpoints are written, and writes them beside the training."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch

from trainyard.contract.sizes import format_size
from worker.checkpoint.memory_checkpoint import MemoryWriter, size_of
from worker.checkpoint.memory_files import MemoryFile, available_memory
from worker.core.distributed import Ranks
from worker.engine.step_sync import Rows, StepSync
from worker.reporting.reporter import Level, Reporter

log = logging.getLogger(__name__)

StateDict = dict[str, Any]
Every = int | Literal["auto"]

MAX_COST = 0.03
"""The share of the training time that `auto` may use."""
MAX_MEMORY = 0.25
"""The share of a node's free memory that two memory checkpoints of all its ranks may use."""
_COPIES = 2
_FIRST_STEP = 3
"""The first steps compile and allocate."""
_FIRST_INTERVAL = 10
_MAX_INTERVAL = 10_000


def interval(every: Every, cost: float, seconds_per_step: float) -> int:
    """Return the steps until the next memory checkpoint.

    Args:
        cost: Seconds that the last one cost the slowest rank; 0 before there was one.
        seconds_per_step: Of the slowest rank, without that cost.
    """
    if every != "auto":
        return every
    if not cost:
        return _FIRST_INTERVAL
    return max(1, min(_MAX_INTERVAL, math.ceil(cost / (MAX_COST * max(seconds_per_step, 1e-9)))))


class MemorySchedule:
    """Every rank calls the same methods at the same steps. The ranks agree on each step by the gathers of `StepSync`.

    A copied state becomes a checkpoint when the points of its step are in the spool: a run that resumes from it has
    them all, as after a checkpoint on disk.
    """

    def __init__(
        self,
        every: Every,
        files: Sequence[MemoryFile],
        ranks: Ranks,
        step_sync: StepSync,
        reporter: Reporter,
        *,
        free: Callable[[], int] = available_memory,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._every, self._ranks, self._sync, self._reporter = every, ranks, step_sync, reporter
        self._free, self._now = free, now
        self._writer = MemoryWriter(files, ranks.world)
        self._stream: torch.cuda.Stream | None = None
        if ranks.device.type == "cuda":
            self._stream = torch.cuda.Stream(ranks.device)  # type: ignore[no-untyped-call]
        self._thread: threading.Thread | None = None
        self._copied, self._released = threading.Event(), threading.Event()
        self._copied.set()
        self._fits: bool | None = None
        """Whether the ranks have agreed that the memory suffices."""
        self._next: int | None = None
        self._steps = 0
        self._since, self._since_step = now(), 0
        self._cost = self._writing_cost = 0.0
        self._failed = False

    def due(self, step: int) -> bool:
        """Return whether to call `write` after this step."""
        self._steps += 1
        if self._next is None:
            return self._fits is None and self._steps == _FIRST_STEP
        return step >= self._next

    def write(self, step: int, capture: Callable[[], StateDict], sources: Mapping[str, str]) -> None:
        """Begin to copy the state. The first call only agrees on whether the memory suffices.

        Args:
            capture: Returns the state, of which no tensor changes before `wait_copied` has returned.
        """
        started, seconds = self._now(), self._seconds_per_step(step)
        self._next = None
        state = capture()
        if self._fits is None:
            needed = _COPIES * size_of(state) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self._sync.queue_gather([needed, self._free()], lambda rows: self._agree_on_memory(step, rows))
            return
        if self._thread:
            self._thread.join()
        cost, self._cost = self._cost + self._writing_cost, 0.0
        self._copied, self._released = threading.Event(), threading.Event()
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream(self._ranks.device))
        arguments = (step, state, sources, self._copied, self._released)
        self._thread = threading.Thread(target=self._write, args=arguments, name="memory-checkpoint", daemon=True)
        self._thread.start()
        self._sync.queue_gather([cost, seconds], lambda rows: self._plan_next(step, rows))
        self._cost = self._now() - started

    def wait_copied(self) -> None:
        """Wait until the last state is copied."""
        if not self._copied.is_set():
            started = self._now()
            self._copied.wait()
            self._cost += self._now() - started

    def close(self) -> None:
        """Wait until nothing is written any more."""
        self._released.set()
        if self._thread:
            self._thread.join()

    def _seconds_per_step(self, step: int) -> float:
        """Return the mean since the last call, without the cost of memory checkpoints in the training thread."""
        now = self._now()
        seconds = (now - self._since - self._cost) / max(1, step - self._since_step)
        self._since, self._since_step = now, step
        return max(0.0, seconds)

    def _agree_on_memory(self, step: int, rows: Rows) -> None:
        """Begin after the coming step if the memory of each node suffices, else report why none is written."""
        lack = next(((needed, free) for needed, free in rows if needed > MAX_MEMORY * free), None)
        self._fits = lack is None
        if lack is None:
            self._next = step + 1
            return
        needed, free = (format_size(int(size)) for size in lack)
        message = (
            f"checkpoint.memory_steps has no effect: the ranks of a node need {needed}, more than a quarter of its "
            f"{free} of free memory; request more with resources.memory_gb_per_gpu"
        )
        level: Level = "info" if self._every == "auto" else "warning"
        self._reporter.event("memory_checkpoints_off", message, level=level)

    def _plan_next(self, step: int, rows: Rows) -> None:
        """Plan the next memory checkpoint; the points of this one have been reported."""
        costs, seconds = zip(*rows, strict=True)
        self._next = step + interval(self._every, max(costs), max(seconds))
        self._released.set()

    def _write(
        self,
        step: int,
        state: StateDict,
        sources: Mapping[str, str],
        copied: threading.Event,
        released: threading.Event,
    ) -> None:
        started = time.thread_time()
        try:
            with torch.cuda.stream(self._stream) if self._stream else nullcontext():
                written = self._writer.copy(step, state, sources)
            copied.set()
            digest = written.digest()
            # On a CPU this takes the time of a core that trains.
            self._writing_cost = time.thread_time() - started if self._stream is None else 0.0
            released.wait()
            self._reporter.flush()
            written.commit(digest)
        except Exception as error:
            # The checkpoints on disk remain.
            if not self._failed:
                log.warning("the memory checkpoint of step %d cannot be written: %s", step, error)
            self._failed = True
        finally:
            copied.set()
