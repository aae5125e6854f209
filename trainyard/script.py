"""Functions for the program of a `script` job: report metrics, get the checkpoint folder, and check for a stop request.

Outside a job, `report` prints its values, `checkpoint_dir` returns the folder `checkpoints` in the current directory,
and `should_stop` returns False.

The launcher puts this file and `reported_names.py` on the path of a program whose Python has no Trainyard. They need
Python 3.9 or newer and no package; `tests/unit/trainyard/test_script.py` compares the records with the contract.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import operator
import os
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any, SupportsFloat

from trainyard.reported_names import ReportedNames

FOLDER = "TRAINYARD_ATTEMPT_FOLDER"
"""The environment variable with the path of the attempt's folder; it is set only in a job."""
CHECKPOINTS = "TRAINYARD_CHECKPOINT_DIR"
"""The environment variable with the path that `checkpoint_dir` returns."""
RESUMED = "TRAINYARD_RESUMED"
"""The environment variable that is 1 if the checkpoint folder has files, so that the program can resume, else 0."""
PROGRESS_INTERVAL = "TRAINYARD_BEAT_SECONDS"
"""The environment variable with the seconds between two progress records; it is set if the watchdog is on."""

_MAX_STEP = 2**53
_MAX_POINTS = 1000
_COMPILER_PATHS = ("/torch/_dynamo/convert_frame.py", "/torch/_inductor/compile_fx.py")
"""Files whose functions are on the stack while torch compiles. Other files of the compiler are there in each step."""
_LOADER_PATHS = ("/torch/utils/data/dataloader.py",)
_LIBRARY_PATHS = ("/torch/", "/importlib/", "<frozen", "/threading.py", "/contextlib.py")


def report(step: int, values: Mapping[str, SupportsFloat], *, total_steps: int | None = None) -> None:
    """Add points to the metrics of the job. Only the points of rank 0 are stored.

    The points are written to the spool before the function returns; another process sends them. The first reported step
    defines where this execution resumed: `report(s, ...)` means at step s - 1, and hides the points that earlier
    executions reported after that step.

    Args:
        step: the number of completed updates, from 1.
        values: metric names and values; a name without a slash gets the prefix `train/`, if no other name has it.
        total_steps: the length of the whole run, for the progress and the ETA.

    A report never ends a training. A name that cannot be printed, has more than 250 characters or belongs to the
    launcher is stored in a form with a digest. Values that are not numbers are left out, and so is a report whose step
    is not a number. The first correction of each kind is an event `report_adjusted` of the job, and a line on stderr.
    """
    number = _whole_step(step, "step")
    length = None if total_steps is None else _whole_step(total_steps, "total_steps")
    job = _job()
    if job is not None:
        job.progressed(number)
    if _rank() != 0 or number is None:
        return
    named = _metrics(values)
    if job is None:
        of = f"/{length}" if length else ""
        print(f"step {number}{of}  " + "  ".join(f"{key} {value:.6g}" for key, value in named.items()), flush=True)
        return
    job.report(number, named, length)


def checkpoint_dir() -> Path:
    """Return the checkpoint folder of the job, which all its attempts share; create it if it is missing.

    The program decides on the files there. Write to a temporary name and rename it, so that a checkpoint is complete.
    """
    folder = Path(os.environ[FOLDER]).parent.parent / "checkpoints" if FOLDER in os.environ else Path("checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def should_stop() -> bool:
    """Return whether there is a stop request: a preemption, cancellation, pause or the time limit.

    On True, save and exit with 0; the service then continues or ends the job. With a process group this is a small
    collective operation with the same result on every rank: call it on every rank, once per step. Without a process
    group each rank checks for itself, and ranks may see the request at different steps.
    """
    if (job := _job()) is None:
        return False
    job.passed_boundary()
    if stops := _any_rank(job.stop_requested()):
        job.note_stop()
    return stops


class ProgressCounter:
    """The progress of the training thread, in memory."""

    def __init__(self) -> None:
        self.marks = 0
        self.step = 0
        self.position = (0, 0)
        """Comparable with the positions of other ranks; see `ProgressRecord`."""
        self.phase = "starting"
        self.underway = False
        """Whether the first step is done. Until then the phase is `starting`, as it compiles and initialises."""

    def mark(self, phase: str, step: int | None = None) -> None:
        """Count a mark and set the phase."""
        if step is not None:
            self.step = step
            self.position = (step, 0)
        elif self.step:
            self.position = (self.step, self.position[1] + 1)
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
        frames = sys._current_frames()
        where, in_torch = location(frames.get(self._training))
        record = {
            "rank": self._rank,
            "execution": self._execution,
            "marks": self._counter.marks,
            "position": self._counter.position,
            "step": self._counter.step,
            "phase": self._counter.phase,
            "where": where,
            "in_torch": in_torch,
            "compiling": any(is_in(frame, _COMPILER_PATHS) for frame in frames.values()),
            "loading": is_in(frames.get(self._training), _LOADER_PATHS),
            "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "pid": os.getpid(),
        }
        text = json.dumps(record)
        if text == self._written:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed but not flushed to disk: after a crash of the machine it is not needed.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self._path)
        self._written = text


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


def is_in(frame: FrameType | None, paths: tuple[str, ...]) -> bool:
    """Return whether a thread is in a function of one of these files."""
    while frame is not None:
        if any(path in frame.f_code.co_filename for path in paths):
            return True
        frame = frame.f_back
    return False


class _Job:
    """The job of this rank, with its spool and its progress file. `AttemptLayout` defines the paths."""

    def __init__(self, folder: Path, execution: int) -> None:
        self._folder = folder
        self._execution = execution
        self._yielded = folder / f"yielded-{execution:06d}"
        self._file: IO[bytes] | None = None
        self._seq = 0
        self._resumed_from = 0
        self._started = False
        self._last: tuple[int, float] | None = None
        self._done = False
        self._boundaries = 0
        self._pulse = ProgressCounter()
        if PROGRESS_INTERVAL in os.environ:
            self._show_progress(float(os.environ[PROGRESS_INTERVAL]))

    def _show_progress(self, interval: float) -> None:
        """Write the progress file for the watchdog; SIGUSR1 writes the stacks of all threads to the log."""
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN:
            faulthandler.register(signal.SIGUSR1)
        path = self._folder / "progress" / f"rank-{_rank()}.json"
        ProgressWriter(self._pulse, path, rank=_rank(), execution=self._execution, interval=interval).start()

    def progressed(self, step: int | None) -> None:
        if step is not None:
            self._pulse.step = step
        if not self._boundaries:
            self._mark(self._pulse.marks + 1)

    def passed_boundary(self) -> None:
        """Count a step boundary. All ranks pass the same boundaries, so that the counts show which rank is behind."""
        self._boundaries += 1
        if self._boundaries == 1:
            with contextlib.suppress(OSError):  # without the mark, the launcher interrupts the program
                (self._folder / f"polls-{self._execution:06d}").touch()
        self._pulse.position = (0, self._boundaries)
        self._mark(self._boundaries)

    def _mark(self, count: int) -> None:
        """Set the progress mark. Until the second mark the phase is `starting`, because the first step may compile."""
        self._pulse.phase = "between" if count > 1 else "starting"
        self._pulse.marks = count

    def stop_requested(self) -> bool:
        return (self._folder / "stop").exists()

    def note_stop(self) -> None:
        """Record that this execution ends because of a stop request, unless all its steps are done."""
        if not self._done:
            self._yielded.touch()

    def report(self, step: int, values: Mapping[str, float], total: int | None) -> None:
        now = _time()
        if not self._started:
            self._begin(step, total, now)
        self._done = total is not None and step >= total
        if self._done:
            self._yielded.unlink(missing_ok=True)
        points = [{"key": key, "step": step, "value": _number(value), "time": now} for key, value in values.items()]
        progress = {"step": step, "total_steps": total, "epoch": 0, "seconds_per_step": _number(self._pace(step))}
        progress |= dict.fromkeys(("seconds_left", "phase", "phase_done", "phase_total"))
        for start in range(0, max(1, len(points)), _MAX_POINTS):
            body = {
                "execution": self._execution,
                "resumed_from_step": self._resumed_from,
                "points": points[start : start + _MAX_POINTS],
                "progress": progress,
            }
            self._write("metrics", body)

    def _begin(self, step: int, total: int | None, now: str) -> None:
        self._started = True
        # The first execution of a job never resumes, whatever step it reports first.
        self._resumed_from = max(0, step - 1) if self._execution > 1 else 0
        resumed = self._resumed_from > 0
        where = f"resumes at step {self._resumed_from}" if resumed else "starts"
        message = f"the program {where}{f' of {total}' if resumed and total else ''}"
        kind = "training_resumed" if resumed else "training_started"
        self.add_event(kind, message, now, data={"step": self._resumed_from, "total_steps": total})

    def add_event(
        self, kind: str, message: str, now: str, *, level: str = "info", data: dict[str, Any] | None = None
    ) -> None:
        self._open()
        event: dict[str, Any] = {"sequence": self._seq, "type": kind, "level": level, "message": message}
        event.update({"data": data or {}, "time": now})
        self._write("events", {"execution": self._execution, "events": [event]})

    def _open(self) -> None:
        if self._file is None:
            path = self._folder / "spool" / f"execution-{self._execution:06d}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._seq = path.read_bytes().count(b"\n") if path.exists() else 0
            self._file = path.open("ab")

    def _pace(self, step: int) -> float | None:
        before, self._last = self._last, (step, time.monotonic())
        if before is None or step <= before[0]:
            return None
        return (self._last[1] - before[1]) / (step - before[0])

    def _write(self, kind: str, body: dict[str, Any]) -> None:
        """Append a record; `trainyard.contract.wire.spool` defines its form."""
        assert self._file is not None
        text = json.dumps(body, separators=(",", ":")).encode()
        header = b'{"seq": %d, "crc": "%08x", "kind": "%s", "body": ' % (self._seq, zlib.crc32(text), kind.encode())
        self._file.write(header + text + b"}\n")
        self._file.flush()
        self._seq += 1


def _whole_step(step: Any, name: str) -> int | None:
    """Return a number of steps as an integer, rounded down; None if it is not a number from 0 to 2**53."""
    number = None
    if not isinstance(step, (bool, str, bytes)):
        with contextlib.suppress(Exception):  # any object, such as a tensor with several elements
            number = _floor(step)
    if number is None or not 0 <= number <= _MAX_STEP:
        _state_once(f"{name} {ascii(step)[:80]} is no number from 0 to 2**53; such a {name} is left out", name)
        return None
    return number


def _floor(step: Any) -> int:
    """Raises an error if the step is not finite."""
    try:
        return operator.index(step)
    except TypeError:
        exact = float(step)
        number = math.floor(exact)
    if number != exact:
        _state_once(f"the step {exact!r} is rounded down to {number}", "fraction")
    return number


def _metrics(values: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Return the values that are numbers, by the full name of their metric."""
    named: dict[str, float] = {}
    if not isinstance(values, Mapping):
        _state_once("the values of a report are no mapping; such values are left out", "values")
        return named
    for key, value in values.items():
        try:
            named[str(key)] = float(value)
        except Exception:  # any object, such as a tensor with several elements
            _state_once(f"the value of {ascii(key)[:80]} is no number; such values are left out", "value")
    # Names with a slash come first, so that `train/loss` keeps its name in a report that also has `loss`.
    stored = {name: _metric_name(name) for name in sorted(named, key=lambda name: "/" not in name)}
    return {stored[name]: value for name, value in named.items()}


def _metric_name(name: str) -> str:
    """Return the name of a metric in the spool. The first changed name is stated."""
    stored, is_changed = _names().stored(name)
    if is_changed:
        _state_once(f"Metric name {name[:80]!a} is stored as {stored!a}; others are changed in the same way", "name")
    return stored


@cache
def _names() -> ReportedNames:
    return ReportedNames(os.environ.get(FOLDER) if _rank() == 0 else None)


def _state_once(message: str, kind: str) -> None:
    """State the first correction of a kind on stderr and in the job's events, on rank 0."""
    if _rank() != 0 or kind in _stated():
        return
    _stated().add(kind)
    print(f"trainyard.script.report: {message}", file=sys.stderr, flush=True)
    if (job := _job()) is not None:
        job.add_event("report_adjusted", message, _time(), level="warning", data={"kind": kind})


@cache
def _stated() -> set[str]:
    """The kinds of corrections that this process has stated."""
    return set()


def _number(value: float | None) -> float | str | None:
    """Return the value for JSON, which cannot represent NaN and infinities."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def _job() -> _Job | None:
    if FOLDER not in os.environ:
        return None
    execution = int(os.environ["TRAINYARD_EXECUTION"]) + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return _Job(Path(os.environ[FOLDER]), execution)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _any_rank(flag: bool) -> bool:
    """Return on every rank whether the flag is set on any rank of the process group, if any."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return flag
    import torch

    verdict = torch.tensor([int(flag)], dtype=torch.int32)
    dist.all_reduce(verdict, dist.ReduceOp.MAX, group=_flags(dist.group.WORLD))
    return bool(verdict.item())


@cache
def _flags(world: Any) -> Any:
    """A separate gloo group, so that the flag waits for no GPU and cannot interleave with other collectives."""
    return sys.modules["torch.distributed"].new_group(backend="gloo")
