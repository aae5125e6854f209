"""What the hub reads: one job's news, and that of all jobs."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from service.db.engine import Database
from service.jobs.repository import JobRepository
from service.streaming.broadcaster import Item, News, Topic
from service.streaming.global_feed import WHOLE, Place, extend_feed, read_feed
from service.streaming.job_stream import read_slice
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.stream_events import LogUpdate

RESET = "event: reset\ndata: {}\n\n"
_EVERY_JOB_SECONDS = 5.0
"""How often all jobs are asked for what other processes wrote; this process's own writes are known."""


class JobNews:
    """A topic: one job's stream."""

    def __init__(self, database: Database, runs: Path, clock: Callable[[], datetime], job_id: str):
        """Raises NotFoundError."""
        self._database = database
        self._run = RunLayout(runs / job_id)
        self._clock = clock
        self._job_id = job_id
        with database.read() as session:
            self.topic: Topic = JobRepository(session, clock()).get(job_id).pk

    def head(self) -> tuple[int, int]:
        with self._database.read() as session:
            return JobRepository(session, self._clock()).get(self._job_id).sequence, 0

    def read(self, place: tuple[int, int], logs: bool) -> News:
        piece = read_slice(self._database, self._job_id, place[0], run=self._run, logs=logs, now=self._clock())
        items = [
            Item(
                (int(message.id), 0),
                message.encode(),
                message.data.rank if isinstance(message.data, LogUpdate) else None,
            )
            for message in piece.messages
        ]
        return News(items, (piece.reached, 0), piece.over, more=bool(items))


class FeedNews:
    """The topic of all jobs."""

    topic: Topic = None

    def __init__(self, database: Database, runs: Path, clock: Callable[[], datetime]):
        self._database = database
        self._runs = runs
        self._clock = clock
        self._touched: set[int] = set()
        self._lock = threading.Lock()
        self._asked_all = 0.0

    def touched(self, jobs: set[int]) -> None:
        """These jobs have news."""
        with self._lock:
            self._touched |= jobs

    def head(self) -> tuple[int, int]:
        return extend_feed(self._database, None), WHOLE

    def read(self, place: tuple[int, int], _logs: bool) -> News:
        extend_feed(self._database, self._due())
        piece = read_feed(self._database, Place(*place), runs=self._runs, now=self._clock())
        reached = (piece.reached.position, piece.reached.within)
        items = [Item((at.position, at.within), message.encode()) for at, message in piece.messages]
        if piece.gap:
            items.insert(0, Item(items[0].place if items else reached, RESET))
        return News(items, reached, over=False, more=piece.more)

    def _due(self) -> set[int] | None:
        with self._lock:
            jobs, self._touched = self._touched, set()
            if time.monotonic() - self._asked_all > _EVERY_JOB_SECONDS:
                self._asked_all = time.monotonic()
                return None
            return jobs
