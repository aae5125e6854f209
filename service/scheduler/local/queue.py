"""The local scheduler's durable queue: a folder with one small file an entry, each appearing by rename."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from service.scheduler.base import SchedulerUnavailableError
from trainyard.contract.layout import write_atomic

KEPT_FOR = timedelta(days=1)
KEPT_AT_MOST = 1000
_LOCK_SECONDS = 45.0
"""Longer than the longest start, which holds the lock."""


class Entry(BaseModel):
    """One attempt in the queue. Its fields fill in this order, and each step is on disk before the next is taken."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tag: str
    marker: str
    """The attempt's value of the marker variable."""
    folder: Path
    python: str
    target: str
    """`module:function`, called with the folder."""
    ranks: int
    environment: dict[str, str]
    time_limit_minutes: int | None = None
    """For people; the worker itself keeps it."""
    sequence: int
    submitted_at: datetime
    begun_at: datetime | None = None
    """A start was begun; until `pid` is known it may or may not have happened."""
    starts: int = 0
    gpus: tuple[int, ...] = ()
    pid: int | None = None
    """Of submitit's controller."""
    create_time: float | None = None
    """Of that process: a pid alone is soon another's."""
    cancel_requested_at: datetime | None = None
    ended_at: datetime | None = None
    message: str = ""

    @property
    def waiting(self) -> bool:
        return self.begun_at is None

    @property
    def submitit_folder(self) -> Path:
        return self.folder / "submitit"


class Queue:
    """Storage only. Every method but `locked` needs the lock."""

    def __init__(self, root: Path) -> None:
        self._live = root / "queue"
        self._ended = root / "ended"
        self._lock = root / "lock"
        for folder in (self._live, self._ended):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Be the only one, over threads and processes, to decide.

        Yields the lock's descriptor: a child that inherits it keeps the lock when this process dies.

        Raises:
            SchedulerUnavailableError: another process does not let go.
        """
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _acquire(handle)
            yield handle
        finally:
            os.close(handle)

    def file(self, tag: str) -> Path:
        return self._live / f"{tag}.json"

    def entries(self) -> list[Entry]:
        """All that wait or run, first submitted first."""
        found = [_read(path) for path in self._live.glob("*.json")]
        return sorted(found, key=lambda entry: entry.sequence)

    def get(self, tag: str) -> Entry | None:
        """The entry of a tag, ended ones included until they are pruned."""
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
        """Nothing of it runs any more. A crash half-way leaves it in the queue, to be ended again."""
        ended = entry.model_copy(update={"ended_at": now, "message": message})
        path = self._ended / f"{entry.tag}.json"
        write_atomic(path, ended.model_dump_json(indent=1), mode=0o600)
        os.utime(path, (now.timestamp(), now.timestamp()))
        self.file(entry.tag).unlink(missing_ok=True)
        self._prune(now)

    def _prune(self, now: datetime) -> None:
        aged = sorted(((path.stat().st_mtime, path) for path in self._ended.glob("*.json")), reverse=True)
        oldest = (now - KEPT_FOR).timestamp()
        for place, (modified, path) in enumerate(aged):
            if place >= KEPT_AT_MOST or modified < oldest:
                path.unlink(missing_ok=True)


def _acquire(handle: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SchedulerUnavailableError("another process holds the local queue") from None
            time.sleep(0.01)


def _read(path: Path) -> Entry:
    try:
        return Entry.model_validate_json(path.read_bytes())
    except ValidationError as error:
        # What it stands for may be running: without it nothing can be said of slots or order.
        raise SchedulerUnavailableError(f"{path} is not an entry of the local queue: {error}") from None
