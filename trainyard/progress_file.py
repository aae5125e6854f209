"""A rank's sign of progress: counted in memory by the training thread, written to a file by a thread of its own.

No torch: the launcher reads the files. Marks cost the training thread three assignments.
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

BEATS_PER_TIMEOUT = 20
"""Beats are written so often within a stall timeout, but never more than once in `MOST_OFTEN` seconds."""
MOST_OFTEN, LEAST_OFTEN = 0.1, 5.0

_MACHINERY = ("/torch/", "/importlib/", "<frozen", "/threading.py", "/contextlib.py")


class ProgressRecord(BaseModel):
    """`beats/rank-<r>.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    execution: int
    marks: int
    """Places passed since the start of the execution; every rank passes the same ones in the same order."""
    step: int
    """The update that it works on."""
    phase: Phase
    where: str = ""
    """The innermost line of a program that the training thread is in, torch's own left out."""
    in_torch: bool = False
    """Whether torch was called from there: then it may be waiting for the others."""
    host: str = ""
    pid: int = 0


class ProgressCounter:
    """What the training thread says of its progress. Without a writer it costs as little and nobody hears it."""

    def __init__(self) -> None:
        self.marks = 0
        self.step = 0
        self.phase: Phase = "starting"
        self.underway = False
        """The first update is done: what is compiled or set up lazily comes with it, so until then it is starting."""

    def mark(self, phase: Phase, step: int | None = None) -> None:
        """Another place was passed."""
        if step is not None:
            self.step = step
        self.phase = phase if self.underway else "starting"
        self.marks += 1


class ProgressWriter:
    """A thread that writes the pulse whenever it has moved, and where the training thread is when it has not."""

    def __init__(self, pulse: ProgressCounter, path: Path, *, rank: int, execution: int, interval: float) -> None:
        self._pulse = pulse
        self._path = path
        self._rank = rank
        self._execution = execution
        self._interval = interval
        self._training = threading.get_ident()
        self._written: str | None = None

    def start(self) -> None:
        """To be called by the training thread."""
        self._write()
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            # A full disk must not end the run, nor a watcher's thread for good.
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        where, in_torch = location(sys._current_frames().get(self._training))
        beat = ProgressRecord(
            rank=self._rank,
            execution=self._execution,
            marks=self._pulse.marks,
            step=self._pulse.step,
            phase=self._pulse.phase,
            where=where,
            in_torch=in_torch,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        text = beat.model_dump_json()
        if text == self._written:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # By rename, but not flushed to disk: after a crash of the machine nobody asks for it.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self._path)
        self._written = text


def interval(timeout_seconds: float) -> float:
    """Seconds between two beats under this stall timeout."""
    return min(LEAST_OFTEN, max(MOST_OFTEN, timeout_seconds / BEATS_PER_TIMEOUT))


def location(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost line outside torch and Python's machinery, and whether torch was called from it."""
    inside = False
    while frame is not None:
        code = frame.f_code
        if not any(part in code.co_filename for part in _MACHINERY):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}", inside
        inside = inside or "/torch/" in code.co_filename
        frame = frame.f_back
    return "", inside


def read_progress(folder: Path, execution: int) -> dict[int, ProgressRecord]:
    """The readable beats of an execution, by rank. Those of an earlier start are of processes that are gone."""
    found = {}
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError):
            beat = ProgressRecord.model_validate_json(path.read_bytes())
            if beat.execution == execution:
                found[beat.rank] = beat
    return found
