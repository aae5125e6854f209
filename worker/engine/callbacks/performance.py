"""Measures the run: the time of a step and its phases, throughput, memory, MFU."""

import math
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from worker.engine.callbacks.base import Callback, StepResult
from worker.engine.callbacks.stragglers import StragglerReporter
from worker.engine.flops import ModelFlops
from worker.engine.step_clock import PhaseSeconds, StepClock, StepMarks, step_clock

_MAX_RANK_CURVES = 64
"""Above this number of ranks, only the spread over the ranks is reported."""
_AVERAGING_SECONDS = 60.0
_MAX_PHASE_STEPS = 100
"""The number of latest steps whose phases are averaged."""
_NONE = PhaseSeconds(0.0, 0.0, 0.0, 0.0)


@dataclass
class _Totals:
    steps: int = 0
    examples: int = 0
    tokens: int = 0
    flops: float = 0.0
    step_seconds: float = 0.0
    evaluation: float = 0.0
    stall: float = 0.0


class StepTimeAverage:
    """The seconds per step, evaluations and waits for checkpoints included, averaged with weights that decay over a
    minute."""

    def __init__(self) -> None:
        self._steps = 0.0
        self._seconds = 0.0

    @property
    def seconds_per_step(self) -> float | None:
        return self._seconds / self._steps if self._steps else None

    def add(self, steps: int, seconds: float) -> None:
        decay = math.exp(-seconds / _AVERAGING_SECONDS)
        self._steps = self._steps * decay + steps
        self._seconds = self._seconds * decay + seconds


class PerformanceMonitor(Callback):
    """Sums times and examples over the steps since the last log: `measure` ends an interval, and `metrics` reports it
    once the values of all ranks are known.

    The time of the loop runs from the start of a step to the next log, evaluation or checkpoint, which all wait for the
    device; within this time the host may be ahead of the device.
    """

    def __init__(
        self,
        device: torch.device,
        flops: ModelFlops | None = None,
        peak: float | None = None,
        stragglers: StragglerReporter | None = None,
        clock: StepClock | None = None,
    ) -> None:
        """`peak`: FLOP/s of all devices together."""
        self._device = device
        self._stragglers = stragglers
        self._flops = flops
        self._peak = peak
        self.step_time = StepTimeAverage()
        self.training_time = StepTimeAverage()
        """The seconds of a step alone."""
        self._clock = clock or step_clock(device)
        self._totals = _Totals()
        self._ended: deque[tuple[_Totals, PhaseSeconds]] = deque()
        """The intervals that are not reported yet."""
        self._marks: deque[StepMarks] = deque(maxlen=_MAX_PHASE_STEPS)
        self._waits: list[StepMarks] = []
        """The first step after each checkpoint: its update may have waited for the copy of the state."""
        self._saved = False
        self._host_peak = 0
        self._running_since: float | None = None
        self._paused_at = 0.0

    def on_step_start(self, step: int) -> None:
        if self._running_since is None:
            self._running_since = time.perf_counter()

    def on_step_end(self, result: StepResult) -> None:
        self._totals.steps += 1
        self._totals.examples += result.examples
        self._totals.tokens += result.tokens.tokens
        if self._flops:
            self._totals.flops += self._flops.of(result.examples, result.tokens)
        self._marks.append(result.marks)
        if self._saved:
            self._waits.append(result.marks)
            self._saved = False

    def on_evaluation_start(self, step: int) -> None:
        self._pause()

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._totals.evaluation += time.perf_counter() - self._paused_at

    def on_checkpoint_start(self, step: int) -> None:
        self._pause()

    def on_checkpoint_end(self, step: int) -> None:
        self._totals.stall += time.perf_counter() - self._paused_at
        self._saved = True

    def _pause(self) -> None:
        """Add the time of the loop, kernels included, until now."""
        if self._running_since is not None:
            self._clock.synchronize()
            self._totals.step_seconds += time.perf_counter() - self._running_since
            self._running_since = None
        self._paused_at = time.perf_counter()

    def _mean_phases(self) -> PhaseSeconds:
        """Return the mean seconds of the phases of the steps since the last call."""
        steps = [marks.seconds(self._clock) for marks in self._marks]
        self._marks.clear()
        return PhaseSeconds(*(sum(phase) / len(steps) for phase in zip(*steps, strict=True))) if steps else _NONE

    def measure(self) -> list[float]:
        """End the interval, and return this rank's values for `metrics`."""
        self._pause()
        waited = sum(marks.stall(self._clock) for marks in self._waits)
        self._waits.clear()
        self._totals.stall += waited
        self._totals.step_seconds -= waited
        phases = self._mean_phases()
        self._ended.append((self._totals, phases))
        self._totals = _Totals()
        # The part of a step in which a rank depends on no other: data and forward. All else ends together.
        own = phases.data + phases.forward
        rss_now = host_rss()
        # The kernel computes the peak from counters that lag behind the current values by some pages a core.
        self._host_peak = max(self._host_peak, host_peak(), rss_now)
        return [own, float(rss_now), float(self._host_peak), *map(float, device_peaks(self._device))]

    def metrics(self, rows: Sequence[Sequence[float]]) -> dict[str, float]:
        """Return the metrics of the oldest interval not reported yet, from the values of all ranks."""
        totals, phases = self._ended.popleft()
        steps = max(1, totals.steps)
        owns, rss, host_peaks, peaks, reserved = zip(*rows, strict=True)
        elapsed = totals.step_seconds + totals.evaluation + totals.stall
        self.step_time.add(totals.steps, elapsed)
        self.training_time.add(totals.steps, totals.step_seconds)
        if self._stragglers:
            self._stragglers.add(owns, totals.step_seconds / steps, elapsed)
        seconds = max(totals.step_seconds, 1e-9)
        metrics = {
            "perf/examples_per_second": totals.examples / seconds,
            "perf/step_seconds": totals.step_seconds / steps,
            "perf/data_seconds": phases.data,
            "perf/forward_backward_seconds": phases.forward_backward,
            "perf/optimizer_seconds": phases.optimizer,
            "perf/evaluation_seconds": totals.evaluation,
            "perf/checkpoint_stall_seconds": totals.stall,
            "perf/rank_spread_seconds": max(owns) - min(owns),
            "memory/host_rss_bytes": max(rss),
            "memory/host_peak_bytes": max(host_peaks),
        }
        if 1 < len(owns) <= _MAX_RANK_CURVES:
            metrics |= {f"perf/rank_seconds/{rank}": seconds for rank, seconds in enumerate(owns)}
        if totals.tokens:
            metrics["perf/tokens_per_second"] = totals.tokens / seconds
        if self._device.type == "cuda":
            metrics["memory/device_peak_bytes"] = max(peaks)
            metrics["memory/device_reserved_bytes"] = max(reserved)
        if totals.flops and self._peak:
            # Model FLOPs utilization, as in PaLM (arXiv:2204.02311, appendix B).
            metrics["perf/mfu"] = totals.flops / seconds / self._peak
        return metrics


def host_rss() -> int:
    """Return the resident bytes of this process; without /proc, their maximum so far."""
    file = _memory_file(os.getpid())
    if file is None:
        return host_peak()
    return int(os.pread(file, 128, 0).split()[1]) * resource.getpagesize()


@cache
def _memory_file(process: int) -> int | None:
    """Return the open file with the sizes of a process in pages; None without /proc. Opening it anew for each log takes
    as long as all else that a log does."""
    try:
        return os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def host_peak() -> int:
    """Return the maximum of this process's resident bytes so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peaks(device: torch.device) -> tuple[int, int]:
    """Return the maximum bytes in tensors on the device, and the maximum bytes that torch's allocator reserved."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
