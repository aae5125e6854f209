"""A phase of `bench.gpu` as a list of cases, and how a case is run."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.gpu.records import Record
from bench.gpu.training import GpuEngine


@dataclass(frozen=True)
class Tools:
    """What a case may use."""

    engine: GpuEngine
    folder: Path
    """An empty folder of the case's own."""
    dry: bool
    """Use tiny shapes, on the CPU."""
    records: Sequence[Record] = ()
    """Results of earlier cases."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.engine.on_gpu else "cpu")

    def milliseconds(self, work: Callable[[], object], *, runs: int = 10) -> float:
        """Return the median time of a call, by the device's own clock, after three calls."""
        for _ in range(1 if self.dry else 3):
            work()
        times = []
        for _ in range(1 if self.dry else runs):
            if not self.engine.on_gpu:
                started = time.perf_counter()
                work()
                times.append(1000 * (time.perf_counter() - started))
                continue
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return median(times)

    def peak_gib(self, work: Callable[[], object]) -> float:
        """Return how much memory of the device a call needs beside what is there; 0 on the CPU."""
        if not self.engine.on_gpu:
            work()
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**30

    def value(self, phase: str, case: str, name: str) -> float | None:
        """Return a value of an earlier case, or None."""
        for record in self.records:
            if (record.phase, record.case) == (phase, case):
                result: float | None = record.values.get(name)
                return result
        return None


@dataclass(frozen=True)
class Outcome:
    """What a case measured."""

    values: Mapping[str, Any]
    passed: bool | None = None
    """None: there is no target."""
    note: str = ""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    name: str
    run: Callable[[Tools], Outcome]
    seconds: float = 20.0
    """It is started only if so many are left, and ended after twice as many and 30 more."""


def run_case(phase: str, case: Case, tools: Tools) -> Record:
    """Return the case's record; an error is recorded with its last line."""
    started = time.perf_counter()
    try:
        outcome = case.run(tools)
    except Exception as error:
        traceback.print_exc()
        note = f"{type(error).__name__}: {error}"
        return Record(phase, case.name, "failed", note=note, seconds=time.perf_counter() - started)
    verdict = "measured" if outcome.passed is None else "passed" if outcome.passed else "missed"
    return Record(phase, case.name, verdict, outcome.values, outcome.note, time.perf_counter() - started)  # type: ignore[arg-type]
