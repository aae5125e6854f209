"""A phase of `bench.gpu` as a list of cases, and how a case is run."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
