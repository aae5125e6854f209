"""Functions for the program of a `script` job: report metrics, get the checkpoint folder, and check for a stop request.

Outside a job, `report` prints its values, `checkpoint_dir` returns the folder `checkpoints` in the current directory,
and `should_stop` returns False.
"""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, SupportsFloat

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import EventsBatch, MetricsBatch, Point, Progress, SpoolKind, WorkerEvent
from trainyard.contract.wire.spool import SpoolBody, format_record
from trainyard.progress_file import ProgressCounter, ProgressWriter

FOLDER = "TRAINYARD_ATTEMPT_FOLDER"
"""The environment variable with the path of the attempt's folder; it is set only in a job."""
PROGRESS_INTERVAL = "TRAINYARD_BEAT_SECONDS"
"""The environment variable with the seconds between two progress records; it is set if the watchdog is on."""


def report(step: int, values: Mapping[str, SupportsFloat], *, total_steps: int | None = None) -> None:
    """Add points to the metrics of the job. Only the points of rank 0 are stored.

    The points are written to the spool before the function returns; another process sends them. The first reported step
    defines where this execution resumed: `report(s, ...)` means at step s - 1, and hides the points that earlier
    executions reported after that step.

    Args:
        step: the number of completed updates, from 1.
        values: metric names and values; a name without a slash gets the prefix `train/`.
        total_steps: the length of the whole run, for the progress and the ETA.

    Raises:
        ValueError: a metric name or value is invalid.
    """
    job = _job()
    if job is not None:
        job.progressed(step)
    if _rank() != 0:
        return
    named = {key if "/" in key else f"train/{key}": float(value) for key, value in values.items()}
    if job is None:
        of = f"/{total_steps}" if total_steps else ""
        print(f"step {step}{of}  " + "  ".join(f"{key} {value:.6g}" for key, value in named.items()), flush=True)
        return
    job.report(step, named, total_steps)


def checkpoint_dir() -> Path:
    """Return the checkpoint folder of the job, which all its attempts share; create it if it is missing.

    The program decides what it writes there. Write to a temporary name and rename it, so that a checkpoint is complete.
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
    job = _job()
    if job is not None:
        job.passed_boundary()
    if job is None or not _any_rank(job.stop_requested()):
        return False
    job.note_stop()
    return True


class _Job:
    """The job of this rank, with its spool and its progress file."""

    def __init__(self, layout: AttemptLayout, execution: int) -> None:
        self._layout = layout
        self._execution = execution
        self._file: IO[bytes] | None = None
        self._seq = 0
        self._resumed_from = 0
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
        path = self._layout.progress_file(_rank())
        ProgressWriter(self._pulse, path, rank=_rank(), execution=self._execution, interval=interval).start()

    def progressed(self, step: int) -> None:
        self._pulse.step = step
        if not self._boundaries:
            self._mark(self._pulse.marks + 1)

    def passed_boundary(self) -> None:
        """Count a step boundary. All ranks pass the same boundaries, so that the counts show which rank is behind."""
        self._boundaries += 1
        self._mark(self._boundaries)

    def _mark(self, count: int) -> None:
        """Set the progress mark. Until the second mark the phase is `starting`, because the first step may compile."""
        self._pulse.phase = "between" if count > 1 else "starting"
        self._pulse.marks = count

    def stop_requested(self) -> bool:
        return self._layout.stop_request.exists()

    def note_stop(self) -> None:
        """Record that this execution ends because of a stop request, unless all its steps are done."""
        if not self._done:
            self._layout.yielded(self._execution).touch()

    def report(self, step: int, values: Mapping[str, float], total: int | None) -> None:
        now = datetime.now(UTC)
        if self._file is None:
            self._begin(step, total, now)
        self._done = total is not None and step >= total
        if self._done:
            self._layout.yielded(self._execution).unlink(missing_ok=True)
        body = MetricsBatch(
            execution=self._execution,
            resumed_from_step=self._resumed_from,
            points=tuple(Point(key=key, step=step, value=value, time=now) for key, value in values.items()),
            progress=Progress(step=step, total_steps=total or step, seconds_per_step=self._pace(step)),
        )
        self._write("metrics", body)

    def _begin(self, step: int, total: int | None, now: datetime) -> None:
        path = self._layout.spool_file(self._execution)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._seq = path.read_bytes().count(b"\n") if path.exists() else 0
        self._file = path.open("ab")
        # The first execution of a job never resumes, whatever step it reports first.
        self._resumed_from = max(0, step - 1) if self._execution > 1 else 0
        resumed = self._resumed_from > 0
        where = f"resumes at step {self._resumed_from}" if resumed else "starts"
        event = WorkerEvent(
            sequence=self._seq,
            type="training_resumed" if resumed else "training_started",
            message=f"the program {where}{f' of {total}' if resumed and total else ''}",
            data={"step": self._resumed_from, "total_steps": total},
            time=now,
        )
        self._write("events", EventsBatch(execution=self._execution, events=(event,)))

    def _pace(self, step: int) -> float | None:
        before, self._last = self._last, (step, time.monotonic())
        if before is None or step <= before[0]:
            return None
        return (self._last[1] - before[1]) / (step - before[0])

    def _write(self, kind: SpoolKind, body: SpoolBody) -> None:
        assert self._file is not None
        self._file.write(format_record(self._seq, kind, body))
        self._file.flush()
        self._seq += 1


@cache
def _job() -> _Job | None:
    if FOLDER not in os.environ:
        return None
    execution = int(os.environ["TRAINYARD_EXECUTION"]) + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return _Job(AttemptLayout(Path(os.environ[FOLDER])), execution)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _any_rank(flag: bool) -> bool:
    """Return on every rank whether the flag is set on any rank of the process group, if there is one."""
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
