"""The scheduler port on this machine: a first-in first-out queue in front of submitit's local executor."""

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from service.scheduler.base import (
    Accepted,
    Ambiguous,
    Known,
    LaunchPlan,
    Observation,
    Rejected,
    SchedulerUnavailableError,
    SubmitOutcome,
)
from service.scheduler.launch_plan import MARKER
from service.scheduler.local import processes
from service.scheduler.local.policy import Line, free_gpus, startable, taken, waiting
from service.scheduler.local.queue import Entry, Queue
from trainyard.contract.wire.cluster import ClusterSnapshot, SlotCount

GRACE = timedelta(seconds=5)
"""Between the polite request to end and SIGKILL."""
MAX_STARTS = 3
_SUBMITTER = "service.scheduler.local.submit"
_SUBMITTER_SECONDS = 35.0
"""Past the submitter's own limit."""


class LocalScheduler:
    """One pass over the queue (`observe`) reaps what has ended, kills what must go, and starts what fits."""

    name: Literal["local", "slurm"] = "local"

    def __init__(
        self,
        state_dir: Path,
        slots: int,
        clock: Callable[[], datetime],
        *,
        gpus: Sequence[int] = (),
        target: str = "worker.launcher.supervisor:run",
    ) -> None:
        """Where `gpus` are given, each rank gets one of its own, and there are at most that many slots."""
        self._queue = Queue(state_dir / "local")
        self._slots = min(slots, len(gpus)) if gpus else slots
        self._clock = clock
        self._gpus = tuple(gpus)
        self._target = target

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        """Record the attempt, and start it if its turn has come. A tag submitted again is not started again."""
        if not re.fullmatch(r"[a-z0-9-]{1,64}", plan.tag):
            return Rejected(f"{plan.tag!r} is not a tag")
        if plan.ranks > self._slots:
            return Rejected(
                f"needs {plan.ranks} local slots, but this service has {self._slots} (TRAINYARD_LOCAL_SLOTS)"
            )
        try:
            with self._decide() as lock:
                if self._queue.get(plan.tag) is None:
                    self._queue.save(self._entry(plan))
                self._advance(lock)
        except SchedulerUnavailableError as error:
            return Ambiguous(str(error))
        return Accepted(plan.tag)

    def observe(self, known: Sequence[Known]) -> Mapping[str, Observation]:
        with self._decide() as lock:
            self._advance(lock)
            entries = self._queue.entries()
            listed, line = {entry.tag: entry for entry in entries}, Line.of(entries, self._slots)
            return {one.tag: self._observation(listed.get(one.tag) or self._queue.get(one.tag), line) for one in known}

    def find(self, tag: str, folder: Path, beside: Sequence[str] = ()) -> list[str]:
        with self._decide() as lock:
            self._advance(lock)
            return [entry.tag for entry in self._queue.entries() if entry.tag == tag]

    def cancel(self, known: Known) -> None:
        with self._decide():
            entry = self._queue.get(known.tag)
            if entry is None or entry.ended_at or entry.cancel_requested_at:
                return
            if entry.waiting:
                self._queue.end(entry, self._clock(), "cancelled before it started")
            else:
                # Recorded first: the launcher gets its SIGTERM at most once, and a lost one is followed by SIGKILL.
                self._queue.save(entry.model_copy(update={"cancel_requested_at": self._clock()}))
                self._terminate(entry)

    def cluster(self) -> ClusterSnapshot:
        with self._decide():
            held = taken(self._queue.entries())
        return ClusterSnapshot(slots=SlotCount(total=self._slots, free=max(0, self._slots - held)))

    def _terminate(self, entry: Entry) -> None:
        if entry.pid and processes.is_alive(entry.pid, entry.create_time, entry.marker):
            processes.terminate(entry.pid)

    @contextmanager
    def _decide(self) -> Iterator[int]:
        try:
            with self._queue.locked() as lock:
                yield lock
        except OSError as error:
            raise SchedulerUnavailableError(f"the local queue: {error}") from error

    def _entry(self, plan: LaunchPlan) -> Entry:
        environment = dict(plan.environment)
        return Entry(
            tag=plan.tag,
            marker=environment.setdefault(MARKER, plan.tag),
            folder=plan.folder.absolute(),
            python=plan.python,
            target=self._target,
            ranks=plan.ranks,
            environment=environment,
            time_limit_minutes=plan.time_limit_minutes,
            sequence=self._queue.next_sequence(),
            submitted_at=self._clock(),
        )

    def _advance(self, lock: int) -> None:
        for entry in self._queue.entries():
            if not entry.waiting:
                self._settle(entry)
        for entry in startable(self._queue.entries(), self._slots):
            self._start(entry, lock)

    def _settle(self, entry: Entry) -> None:
        """Bring one begun entry in line with the process table."""
        if entry.pid is None:
            self._resolve(entry)
        elif processes.is_alive(entry.pid, entry.create_time, entry.marker):
            asked = entry.cancel_requested_at
            if asked and self._clock() - asked >= GRACE:
                processes.kill_marked(entry.marker)
        elif processes.kill_marked(entry.marker) == 0:
            self._queue.end(entry, self._clock())

    def _resolve(self, entry: Entry) -> None:
        """A start was begun and its outcome never recorded: adopt what runs, and start again only what never ran."""
        controller = processes.controller_among(processes.marked(entry.marker))
        if controller:
            self._record(entry, controller.pid)
        elif processes.kill_marked(entry.marker):
            return
        elif entry.starts >= MAX_STARTS or entry.cancel_requested_at or _has_run(entry):
            self._queue.end(entry, self._clock(), entry.message)
        else:
            self._queue.save(entry.model_copy(update={"begun_at": None, "gpus": ()}))

    def _start(self, entry: Entry, lock: int) -> None:
        gpus = free_gpus(self._queue.entries(), self._gpus)[: entry.ranks]
        begun = {"begun_at": self._clock(), "starts": entry.starts + 1, "gpus": gpus, "message": ""}
        entry = self._queue.save(Entry.model_validate(entry.model_dump() | begun))
        try:
            answer = _run_submitter(entry, self._queue.file(entry.tag), lock)
            self._record(entry, int(json.loads(answer)["pid"]))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # The next pass finds out whether anything runs.
            self._queue.save(entry.model_copy(update={"message": f"could not be started: {_reason(entry, error)}"}))

    def _record(self, entry: Entry, pid: int) -> None:
        identity: dict[str, Any] = {"pid": pid, "create_time": processes.create_time(pid), "message": ""}
        self._queue.save(entry.model_copy(update=identity))

    def _observation(self, entry: Entry | None, line: Line) -> Observation:
        if entry is None:
            return Observation("absent")
        if entry.ended_at:
            return Observation("ended", entry.message)
        if entry.waiting:
            return waiting(entry, line)
        if entry.pid is None:
            return Observation("pending", entry.message or "being started")
        return Observation("running", nodes=(socket.gethostname(),))


def _run_submitter(entry: Entry, file: Path, lock: int) -> bytes:
    """Run the submitter to its end, in a session that no terminal of ours reaches.

    It inherits the queue's lock, so that nobody looks at a start half-way when this process dies.
    """
    entry.submitit_folder.mkdir(exist_ok=True)
    with (entry.submitit_folder / "submit.log").open("wb") as log:
        child = subprocess.Popen(
            [entry.python, "-m", _SUBMITTER, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=entry.environment,
            cwd=entry.folder,
            start_new_session=True,
            pass_fds=(lock,),
        )
        with child:
            try:
                return child.communicate(timeout=_SUBMITTER_SECONDS)[0]
            finally:
                child.kill()


def _has_run(entry: Entry) -> bool:
    """submitit's controller makes the task's log file just before the task: without one, no task ever was."""
    return any(entry.submitit_folder.glob("*_0_log.out"))


def _reason(entry: Entry, error: Exception) -> str:
    """The submitter's last line, where it wrote one."""
    log = entry.submitit_folder / "submit.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else str(error)
