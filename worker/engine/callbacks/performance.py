"""Numbers about the run itself: where a step's time goes, how fast it is, how much memory it holds."""

import math
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from worker.core.distributed import Ranks
from worker.engine.train_step import StepResult

_RANKS_SHOWN = 64
"""Up to so many each rank has a curve of its own; beyond, only how far apart they are."""
_PACE_SECONDS = 60.0


@dataclass
class _Sums:
    steps: int = 0
    examples: int = 0
    step_seconds: float = 0.0
    data: float = 0.0
    forward: float = 0.0
    forward_backward: float = 0.0
    optimizer: float = 0.0
    stall: float = 0.0


class StepTimeAverage:
    """What a step takes over about the last minute, waits for checkpoints included: the rest is reckoned with it."""

    def __init__(self) -> None:
        self._steps = 0.0
        self._seconds = 0.0

    @property
    def seconds_per_step(self) -> float | None:
        return self._seconds / self._steps if self._steps else None

    def add(self, steps: int, seconds: float) -> None:
        """So many steps took so long; what was before counts for less, the longer ago it was."""
        kept = math.exp(-seconds / _PACE_SECONDS)
        self._steps = self._steps * kept + steps
        self._seconds = self._seconds * kept + seconds


@dataclass
class PerformanceMonitor:
    """Sums over the steps since the last log; `take` turns them into metrics and begins anew."""

    ranks: Ranks
    tokens_per_example: int
    flops: float | None = None
    """Of one example, forward and backward."""
    peak: float | None = None
    """FLOP/s of all devices together."""
    pace: StepTimeAverage = field(default_factory=StepTimeAverage)
    _sums: _Sums = field(default_factory=_Sums)
    _host_peak: int = 0

    def add(self, result: StepResult, examples: int, seconds: float) -> None:
        sums = self._sums
        sums.steps += 1
        sums.examples += examples
        sums.step_seconds += seconds
        sums.data += result.data_seconds
        sums.forward += result.forward_seconds
        sums.forward_backward += result.forward_backward_seconds
        sums.optimizer += result.optimizer_seconds

    def stalled(self, seconds: float) -> None:
        """Training waited for a checkpoint."""
        self._sums.stall += seconds

    def take(self) -> dict[str, float]:
        """A collective."""
        sums, self._sums = self._sums, _Sums()
        steps = max(1, sums.steps)
        # What a rank does before the others can hold it up: data and forward. All else ends together.
        own = (sums.data + sums.forward) / steps
        rss_now = host_rss()
        # The kernel tells the peak from counters that lag behind those of the present, by some pages a core.
        self._host_peak = max(self._host_peak, host_peak(), rss_now)
        memory = [float(rss_now), float(self._host_peak), *map(float, device_peaks(self.ranks.device))]
        owns, rss, host_peaks, peaks, reserved = zip(*self.ranks.gather([own, *memory]), strict=True)
        self.pace.add(sums.steps, sums.step_seconds + sums.stall)
        found = {
            "perf/examples_per_second": sums.examples / max(sums.step_seconds, 1e-9),
            "perf/step_seconds": sums.step_seconds / steps,
            "perf/data_seconds": sums.data / steps,
            "perf/forward_backward_seconds": sums.forward_backward / steps,
            "perf/optimizer_seconds": sums.optimizer / steps,
            "perf/checkpoint_stall_seconds": sums.stall,
            "perf/rank_spread_seconds": max(owns) - min(owns),
            "memory/host_rss_bytes": max(rss),
            "memory/host_peak_bytes": max(host_peaks),
        }
        if 1 < len(owns) <= _RANKS_SHOWN:
            found |= {f"perf/rank_seconds/{rank}": seconds for rank, seconds in enumerate(owns)}
        if self.tokens_per_example:
            found["perf/tokens_per_second"] = found["perf/examples_per_second"] * self.tokens_per_example
        if self.ranks.device.type == "cuda":
            found["memory/device_peak_bytes"] = max(peaks)
            found["memory/device_reserved_bytes"] = max(reserved)
        if self.flops and self.peak:
            found["perf/mfu"] = found["perf/examples_per_second"] * self.flops / self.peak
        return found


def host_rss() -> int:
    """Resident bytes of this process; where there is no /proc, the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return host_peak()


def host_peak() -> int:
    """The most resident bytes this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peaks(device: torch.device) -> tuple[int, int]:
    """The most bytes this process ever had in tensors on the device, and in the allocator's hands."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


class Stopwatch:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return seconds
