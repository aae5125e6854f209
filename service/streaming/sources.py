"""The sources that the broadcaster reads: a job, and all jobs."""

import threading
import time
from pathlib import Path

from service.core.clock import Clock
from service.db.engine import Database
from service.db.visibility import all_jobs
from service.jobs.repository import JobRepository
from service.streaming.broadcaster import Item, StreamOffset, Topic, Update
from service.streaming.global_feed import END_OF_ENTRY, append_to_feed, read_feed
from service.streaming.job_stream import read_job_stream
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.stream_events import LogUpdate

RESET = "event: reset\ndata: {}\n\n"
_ALL_JOBS_SECONDS = 5.0
"""Interval at which all jobs are checked for changes by other processes."""


class JobSource:
    """The stream of a job."""

    def __init__(self, database: Database, runs: Path, clock: Clock, job_id: str):
        """Raises NotFoundError."""
        self._database = database
        self._run = RunLayout(runs / job_id)
        self._clock = clock
        self._job_id = job_id
        with database.read() as session:
            self.topic: Topic = JobRepository(session, clock()).get(job_id).pk

    def newest_offset(self) -> StreamOffset:
        with self._database.read() as session:
            return StreamOffset(JobRepository(session, self._clock()).get(self._job_id).sequence)

    def read(self, offset: StreamOffset, logs: bool) -> Update:
        part = read_job_stream(
            self._database, self._job_id, offset.position, run=self._run, logs=logs, now=self._clock()
        )
        items = [
            Item(
                StreamOffset(int(message.id)),
                message.text,
                message.data.rank if isinstance(message.data, LogUpdate) else None,
                *part.shown_to,
            )
            for message in part.messages
        ]
        return Update(items, StreamOffset(part.sequence), part.finished, more=bool(items))


class GlobalSource:
    """The stream of all jobs."""

    topic: Topic = None

    def __init__(self, database: Database, runs: Path, clock: Clock):
        self._database = database
        self._runs = runs
        self._clock = clock
        self._changed_jobs: set[int] = set()
        self._lock = threading.Lock()
        self._all_checked_at = 0.0

    def on_commit(self, jobs: set[int]) -> None:
        """Append these jobs to the feed at the next read."""
        with self._lock:
            self._changed_jobs |= jobs

    def newest_offset(self) -> StreamOffset:
        """Append the news of all jobs to the feed, and return its end."""
        with all_jobs():
            return StreamOffset(append_to_feed(self._database, None), END_OF_ENTRY)

    def read(self, offset: StreamOffset, _logs: bool) -> Update:
        # Subscriptions leave out data that their users cannot see.
        with all_jobs():
            append_to_feed(self._database, self._jobs_to_check())
            part = read_feed(self._database, offset, runs=self._runs, now=self._clock())
        items = [Item(at, message.text, None, *shown_to) for at, message, shown_to in part.messages]
        if part.gap:
            items.insert(0, Item(items[0].offset if items else part.offset, RESET))
        return Update(items, part.offset, finished=False, more=part.more)

    def _jobs_to_check(self) -> set[int] | None:
        """Return the jobs that this process has changed, or None for all jobs."""
        with self._lock:
            jobs, self._changed_jobs = self._changed_jobs, set()
            if time.monotonic() - self._all_checked_at > _ALL_JOBS_SECONDS:
                self._all_checked_at = time.monotonic()
                return None
            return jobs
