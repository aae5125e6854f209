"""The local scheduler: a first-in first-out queue in front of submitit's local executor."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from service.as_owner.accounts import AccountError
from service.as_owner.calls import OwnerCallError, OwnerCalls
from service.core.thread_slots import SlotsTakenError, ThreadSlots
from service.core.untrusted_files import IrregularFileError, files_of_attempt
from service.scheduler.base import (
    Accepted,
    Ambiguous,
    LaunchPlan,
    Observation,
    QueueEntry,
    Rejected,
    SchedulerUnavailableError,
    SubmitOutcome,
    SubmittedJob,
)
from service.scheduler.local import processes
from service.scheduler.local.policy import (
    MAX_STARTING,
    QueueState,
    describe_waiting,
    free_gpus,
    slots_in_use,
    startable,
)
from service.scheduler.local.queue import Entry, Gpu, Queue
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE
from trainyard.contract.wire.cluster import ClusterSnapshot, SlotCount

GRACE = timedelta(seconds=60)
"""The time between SIGTERM and SIGKILL. The launcher ends the ranks of a cancelled job within 40 s by itself, and then
reads and sends the rest of their reports."""
MAX_STARTS = 3
_MAX_STARTS_AT_ONCE = 64
"""Starts of all owners."""
_MAX_ENTRIES = 1000
"""Entries of an attempt's folder that are read."""
_SUBMITTER = "service.scheduler.local.submit"
_SUBMITTER_SECONDS = 35.0
"""Longer than the submitter's own limit."""


class LocalScheduler:
    """Each call reaps ended entries, kills cancelled entries after the grace period, and starts the entries that
    fit."""

    name: Literal["local", "slurm"] = "local"

    def __init__(
        self,
        state_dir: Path,
        slots: int,
        clock: Callable[[], datetime],
        *,
        gpus: Sequence[Gpu] = (),
        owners: OwnerCalls | None = None,
        target: str = "worker.launcher.supervisor:run",
    ) -> None:
        """Create the scheduler.

        Args:
            gpus: If given, each rank gets a GPU of this list, and there are at most as many slots.
            owners: Set where jobs run as their owners; the service is then root.
        """
        self._queue = Queue(state_dir / "local")
        self._slots = min(slots, len(gpus)) if gpus else slots
        self._clock = clock
        self._gpus = tuple(gpus)
        self._owners = owners
        self._target = target
        # A thread records its result before it ends, so an owner's next start may come before the end of its slot.
        self._starts = ThreadSlots(each=2 * MAX_STARTING, total=_MAX_STARTS_AT_ONCE, wait_seconds=0)

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        """Queue the attempt, and start it if its turn has come. A repeated tag is not started again."""
        if not re.fullmatch(r"[a-z0-9-]{1,64}", plan.tag):
            return Rejected(f"{plan.tag!r} is not a valid tag")
        if plan.ranks > self._slots:
            return Rejected(
                f"The job needs {plan.ranks} local slots, and this service has {self._slots} (TRAINYARD_LOCAL_SLOTS)."
            )
        try:
            with self._locked() as lock:
                if self._queue.get(plan.tag) is None:
                    self._queue.save(self._entry(plan))
                self._advance(lock)
        except SchedulerUnavailableError as error:
            return Ambiguous(str(error))
        return Accepted(plan.tag)

    def observe(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        with self._locked() as lock:
            self._advance(lock)
            entries = self._queue.entries()
            listed, queue = {entry.tag: entry for entry in entries}, QueueState.of(entries, self._slots)
            return {job.tag: self._observation(listed.get(job.tag) or self._queue.get(job.tag), queue) for job in jobs}

    def find(self, tag: str, folder: Path, unconfirmed_tags: Sequence[str] = (), uid: int | None = None) -> list[str]:
        with self._locked() as lock:
            self._advance(lock)
            return [entry.tag for entry in self._queue.entries() if entry.tag == tag]

    def recorded_answer(self, folder: Path, submission: str, uid: int | None = None) -> SubmitOutcome | None:
        return None

    def own_entries(self) -> list[QueueEntry]:
        with self._locked() as lock:
            self._advance(lock)
            entries = self._queue.entries()
        return [QueueEntry(each.tag, each.tag, "pending" if each.waiting else "running", each.uid) for each in entries]

    def cancel(self, job: SubmittedJob) -> None:
        with self._locked():
            entry = self._queue.get(job.tag)
            if entry is None or entry.ended_at or entry.cancel_requested_at:
                return
            if entry.waiting:
                self._queue.end(entry, self._clock(), "Cancelled before the attempt started.")
            else:
                # Recorded first, so that the launcher gets SIGTERM at most once; a lost SIGTERM is followed by SIGKILL.
                self._queue.save(entry.model_copy(update={"cancel_requested_at": self._clock()}))
                self._terminate(entry)

    def cluster(self) -> ClusterSnapshot:
        with self._locked():
            used = slots_in_use(self._queue.entries())
        return ClusterSnapshot(slots=SlotCount(total=self._slots, free=max(0, self._slots - used)))

    def _terminate(self, entry: Entry) -> None:
        if entry.pid and processes.is_alive(entry.pid, entry.create_time, entry.env_tag, entry.account):
            processes.terminate(entry.pid)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            with self._queue.locked() as lock:
                yield lock
        except OSError as error:
            raise SchedulerUnavailableError(f"the local queue: {error}") from error

    def _entry(self, plan: LaunchPlan) -> Entry:
        environment = dict(plan.environment)
        return Entry(
            tag=plan.tag,
            env_tag=environment.setdefault(ATTEMPT_VARIABLE, plan.tag),
            folder=plan.folder.absolute(),
            python=plan.python,
            target=self._target,
            ranks=plan.ranks,
            environment=environment,
            uid=plan.uid,
            time_limit_minutes=plan.time_limit_minutes,
            sequence=self._queue.next_sequence(),
            submitted_at=self._clock(),
        )

    def _advance(self, lock: int) -> None:
        for entry in self._queue.entries():
            if not entry.waiting:
                self._update(entry)
        for entry in startable(self._queue.entries(), self._slots):
            self._start(entry, lock)

    def _update(self, entry: Entry) -> None:
        """Bring a started entry in line with the process table."""
        if entry.pid is None:
            if (handle := self._queue.lock_start(entry.tag)) is not None:
                try:
                    self._recover(entry)
                finally:
                    os.close(handle)
        elif processes.is_alive(entry.pid, entry.create_time, entry.env_tag, entry.account):
            requested = entry.cancel_requested_at
            if requested and self._clock() - requested >= GRACE:
                processes.kill_tagged(entry.env_tag, entry.account)
        elif processes.kill_tagged(entry.env_tag, entry.account) == 0:
            self._queue.end(entry, self._clock())

    def _recover(self, entry: Entry) -> None:
        """Resolve a start whose outcome was not recorded: adopt running processes, and restart only if none ever
        ran."""
        controller = processes.controller_among(processes.tagged_processes(entry.env_tag, entry.account))
        if controller:
            self._record(entry, controller.pid)
        elif processes.kill_tagged(entry.env_tag, entry.account):
            return
        elif entry.starts >= MAX_STARTS or entry.cancel_requested_at or _has_run(entry):
            self._queue.end(entry, self._clock(), entry.message)
        else:
            self._queue.save(entry.model_copy(update={"begun_at": None, "gpus": ()}))

    def _start(self, entry: Entry, lock: int) -> None:
        gpus = free_gpus(self._queue.entries(), self._gpus)[: entry.ranks]
        begun = {"begun_at": self._clock(), "starts": entry.starts + 1, "gpus": gpus, "message": ""}
        started = Entry.model_validate(entry.model_dump() | begun)
        if entry.uid is not None:
            self._begin_as_owner(entry, started, entry.uid)
            return
        self._queue.save(started)
        try:
            self._record(started, _pid_in(_run_submitter(started, self._queue.file(entry.tag), lock)))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._record_failure(started, error)

    def _begin_as_owner(self, waiting: Entry, started: Entry, uid: int) -> None:
        """Begin to start an entry in a thread of its owner, who can delay it, and so must hold no lock of the queue."""
        handle = self._queue.lock_start(started.tag)
        if handle is None:
            return
        try:
            self._queue.save(started)
            self._starts.begin(f"uid {uid}", self._start_as_owner, started, uid, handle)
        except (SlotsTakenError, RuntimeError):  # There is no thread for it now.
            os.close(handle)
            self._queue.save(waiting)
        except BaseException:
            os.close(handle)
            raise

    def _start_as_owner(self, entry: Entry, uid: int, handle: int) -> None:
        """Start an entry and record it. If that fails, the next call finds out whether anything runs."""
        pid, failure = None, None
        try:
            try:
                pid = _pid_in(self._run_as_owner(entry, uid, handle))
            except (OSError, ValueError, AccountError, OwnerCallError) as error:
                failure = error
            with self._locked():
                current = self._queue.get(entry.tag)
                if current is None or current.ended_at:
                    return
                if pid is not None:
                    self._record(current, pid)
                elif failure is not None:
                    self._record_failure(current, failure)
        finally:
            os.close(handle)

    def _run_as_owner(self, entry: Entry, uid: int, handle: int) -> bytes:
        """Run the submitter as the owner of the attempt, as `_run_submitter` does."""
        if self._owners is None:
            raise OwnerCallError(f"it is to run as uid {uid}, and TRAINYARD_RUN_AS is not owner")
        request = {
            "folder": str(entry.folder),
            "python": entry.python,
            "module": _SUBMITTER,
            "environment": entry.environment,
            "entry": entry.model_dump(mode="json"),
        }
        result = self._owners.call(uid, "start", request, _SUBMITTER_SECONDS, held=handle)
        return str(result.get("stdout")).encode()

    def _record(self, entry: Entry, pid: int) -> None:
        identity: dict[str, Any] = {"pid": pid, "create_time": processes.create_time(pid), "message": ""}
        recorded = self._queue.save(entry.model_copy(update=identity))
        if recorded.cancel_requested_at:
            self._terminate(recorded)

    def _record_failure(self, entry: Entry, error: Exception) -> None:
        # The next call finds out whether anything runs.
        self._queue.save(entry.model_copy(update={"message": f"Start failed: {_last_line(entry, error)}"}))

    def _observation(self, entry: Entry | None, queue: QueueState) -> Observation:
        if entry is None:
            return Observation("absent")
        if entry.ended_at:
            return Observation("ended", entry.message)
        if entry.waiting:
            return describe_waiting(entry, queue)
        if entry.pid is None:
            return Observation("pending", entry.message or "Starting.")
        return Observation("running", nodes=(socket.gethostname(),))


def _run_submitter(entry: Entry, file: Path, lock: int) -> bytes:
    """Run the submitter to its end, in a session of its own, so that terminal signals do not reach the job.

    It inherits the queue's lock, so that the start is complete before another process reads the queue.
    """
    entry.submitit.mkdir(exist_ok=True)
    with (entry.submitit / "submit.log").open("wb") as log:
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


def _pid_in(result: bytes) -> int:
    """The pid in a submitter's result. Raises ValueError: it has none."""
    document = json.loads(result)
    pid = document.get("pid") if isinstance(document, dict) else None
    if not isinstance(pid, int) or pid <= 1:
        raise ValueError("the submitter printed no pid")
    return pid


def _has_run(entry: Entry) -> bool:
    """Whether a task ever started: submitit's controller creates the task's log file just before."""
    try:
        names = files_of_attempt(entry.folder, entry.uid).list_names(entry.submitit, _MAX_ENTRIES)
    except (FileNotFoundError, IrregularFileError):
        return False
    return any(name.endswith("_0_log.out") for name in names)


def _last_line(entry: Entry, error: Exception) -> str:
    """The last line of the submitter's log, or the error if there is none."""
    return files_of_attempt(entry.folder, entry.uid).last_line(entry.submitit / "submit.log") or str(error)
