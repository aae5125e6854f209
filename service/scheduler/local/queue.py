"""The durable queue of the local scheduler: a folder with one file per entry, each written atomically."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from service.scheduler.base import SchedulerUnavailableError
from trainyard.contract.layout import AttemptLayout, write_atomic

RETENTION = timedelta(days=1)
MAX_ENDED = 1000
_LOCK_SECONDS = 45.0
"""Longer than the longest start of an entry, which holds the lock."""


Gpu = int | str
"""A GPU in CUDA_VISIBLE_DEVICES: its number, its UUID, or the UUID of a MIG instance."""


class Entry(BaseModel):
    """One attempt in the queue. Its fields are filled in this order, and each step is on disk before the next."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tag: str
    env_tag: str
    """The value of `TRAINYARD_ATTEMPT` in its processes."""
    folder: Path
    python: str
    target: str
    """`module:function`; called with the folder."""
    ranks: int
    environment: dict[str, str]
    uid: int | None = None
    """The Unix account as which it runs; None: the service's account."""
    time_limit_minutes: int | None = None
    """For display; the worker enforces it."""
    sequence: int
    submitted_at: datetime
    begun_at: datetime | None = None
    """When a start began; until `pid` is recorded, it may or may not have happened."""
    starts: int = 0
    gpus: tuple[Gpu, ...] = ()
    pid: int | None = None
    """The pid of submitit's controller."""
    create_time: float | None = None
    """The start time of that process, since pids are reused."""
    cancel_requested_at: datetime | None = None
    ended_at: datetime | None = None
    message: str = ""

    @property
    def waiting(self) -> bool:
        return self.begun_at is None

    @property
    def account(self) -> int:
        """The uid of its processes."""
        return os.getuid() if self.uid is None else self.uid

    @property
    def submitit(self) -> Path:
        return AttemptLayout(self.folder).submitit


class Queue:
    """The storage. Every method except `locked` requires the lock."""

    def __init__(self, root: Path) -> None:
        self._live = root / "queue"
        self._ended = root / "ended"
        self._starts = root / "starts"
        self._lock = root / "lock"
        for folder in (self._live, self._ended, self._starts):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the queue's lock, exclusive among threads and processes.

        Yields the lock's file descriptor: a child that inherits it holds the lock after this process has died.

        Raises:
            SchedulerUnavailableError: another process held the lock for 45 seconds.
        """
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _acquire(handle)
            yield handle
        finally:
            os.close(handle)

    def lock_start(self, tag: str) -> int | None:
        """Return a descriptor that holds the lock of an entry's start; None: a start is in progress.

        A process that inherits the descriptor holds the lock after this process has died.
        """
        handle = os.open(self._start_lock(tag), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return handle

    def file(self, tag: str) -> Path:
        return self._live / f"{tag}.json"

    def entries(self) -> list[Entry]:
        """All waiting and running entries, in the order of submission."""
        entries = [_read(path) for path in self._live.glob("*.json")]
        return sorted(entries, key=lambda entry: entry.sequence)

    def get(self, tag: str) -> Entry | None:
        """The entry with this tag; ended entries are included until they are pruned."""
        for path in (self.file(tag), self._ended / f"{tag}.json"):
            if path.exists():
                return _read(path)
        return None

    def next_sequence(self) -> int:
        return max((entry.sequence for entry in self.entries()), default=0) + 1

    def save(self, entry: Entry) -> Entry:
        # The environment may hold a user's secrets.
        write_atomic(self.file(entry.tag), entry.model_dump_json(indent=1), mode=0o600)
        return entry

    def end(self, entry: Entry, now: datetime, message: str = "") -> None:
        """Move an entry whose processes have ended; after a crash in between, it is still queued and moved again."""
        ended = entry.model_copy(update={"ended_at": now, "message": message})
        path = self._ended / f"{entry.tag}.json"
        write_atomic(path, ended.model_dump_json(indent=1), mode=0o600)
        os.utime(path, (now.timestamp(), now.timestamp()))
        self.file(entry.tag).unlink(missing_ok=True)
        self._start_lock(entry.tag).unlink(missing_ok=True)
        self._prune(now)

    def _start_lock(self, tag: str) -> Path:
        return self._starts / tag

    def _prune(self, now: datetime) -> None:
        aged = sorted(((path.stat().st_mtime, path) for path in self._ended.glob("*.json")), reverse=True)
        oldest = (now - RETENTION).timestamp()
        for index, (modified, path) in enumerate(aged):
            if index >= MAX_ENDED or modified < oldest:
                path.unlink(missing_ok=True)


def _acquire(handle: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SchedulerUnavailableError("another process holds the lock of the local queue") from None
            time.sleep(0.01)


def _read(path: Path) -> Entry:
    try:
        return Entry.model_validate_json(path.read_bytes())
    except ValidationError as error:
        # Its attempt may be running, so slots and order cannot be known without it.
        raise SchedulerUnavailableError(f"{path} is not a valid entry of the local queue: {error}") from None
