"""A rank's progress: counted in memory by the training thread, written to a file by another thread.

Imports no torch, since the launcher reads the files. A mark costs the training thread three assignments.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Literal

from pydantic import BaseModel, ConfigDict

Phase = Literal["starting", "forward", "backward", "update", "between", "evaluating", "saving", "exporting", "ending"]

WRITES_PER_TIMEOUT = 20
"""Writes within a stall timeout, at intervals between the two limits below."""
MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.1, 5.0

_LIBRARY_PATHS = ("/torch/", "/importlib/", "<frozen", "/threading.py", "/contextlib.py")


class ProgressRecord(BaseModel):
    """`progress/rank-<r>.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    execution: int
    marks: int
    """Marks since the start of the execution; every rank makes the same ones in the same order."""
    step: int
    """The step that the rank works on."""
    phase: Phase
    where: str = ""
    """The innermost line of code outside torch that the training thread executes."""
    in_torch: bool = False
    """Whether that line called torch, and so may wait for other ranks."""
    host: str = ""
    """The node, by its name in the scheduler if it has one."""
    pid: int = 0


class ProgressCounter:
    """The progress of the training thread, in memory."""

    def __init__(self) -> None:
        self.marks = 0
        self.step = 0
        self.phase: Phase = "starting"
        self.underway = False
        """Whether the first step is done. Until then the phase is `starting`, as it compiles and initialises."""

    def mark(self, phase: Phase, step: int | None = None) -> None:
        """Count a mark and set the phase."""
        if step is not None:
            self.step = step
        self.phase = phase if self.underway else "starting"
        self.marks += 1


class ProgressWriter:
    """A thread that writes the progress and the current line of the training thread whenever they change."""

    def __init__(self, counter: ProgressCounter, path: Path, *, rank: int, execution: int, interval: float) -> None:
        self._counter = counter
        self._path = path
        self._rank = rank
        self._execution = execution
        self._interval = interval
        self._training = threading.get_ident()
        self._written: str | None = None

    def start(self) -> None:
        """Start the thread; called by the training thread."""
        self._write()
        threading.Thread(target=self._run, name="progress-writer", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            # A full disk must end neither the run nor this thread.
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        where, in_torch = location(sys._current_frames().get(self._training))
        record = ProgressRecord(
            rank=self._rank,
            execution=self._execution,
            marks=self._counter.marks,
            step=self._counter.step,
            phase=self._counter.phase,
            where=where,
            in_torch=in_torch,
            host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            pid=os.getpid(),
        )
        text = record.model_dump_json()
        if text == self._written:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed but not flushed to disk: after a crash of the machine it is not needed.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self._path)
        self._written = text


def interval(timeout_seconds: float) -> float:
    """Return the seconds between two writes for a stall timeout."""
    return min(MAX_INTERVAL_SECONDS, max(MIN_INTERVAL_SECONDS, timeout_seconds / WRITES_PER_TIMEOUT))


def location(frame: FrameType | None) -> tuple[str, bool]:
    """Return the innermost line outside torch and Python's internals, and whether it called torch."""
    inside = False
    while frame is not None:
        code = frame.f_code
        if not any(part in code.co_filename for part in _LIBRARY_PATHS):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}", inside
        inside = inside or "/torch/" in code.co_filename
        frame = frame.f_back
    return "", inside


def read_progress(folder: Path, execution: int) -> dict[int, ProgressRecord]:
    """Return the readable records of an execution, by rank. Those of earlier executions are ignored."""
    records = {}
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record = ProgressRecord.model_validate_json(path.read_bytes())
            if record.execution == execution:
                records[record.rank] = record
    return records
