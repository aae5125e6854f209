"""Appending to the logs of an attempt, reading them, and where a log was at a time or a step."""

from collections.abc import Callable
from datetime import datetime

from sqlalchemy.orm import Session

from service.core.errors import InvalidRequestError, LogOffsetError, NotFoundError
from service.db.engine import Database
from service.db.models import Attempt, LogChunk
from service.jobs.repository import JobRepository
from service.logs.repository import LogRepository
from trainyard.contract.wire.logs import LogPosition

LAUNCH = "launch"
"""The log of the launcher."""


class LogWriter:
    """Appends to the logs of an attempt. Repeated appends are not stored twice."""

    def __init__(
        self,
        database: Database,
        attempt_id: str,
        now: datetime,
        limit: int,
        count: Callable[[str, int], None] = lambda _kind, _amount: None,
        *,
        late: bool = False,
    ):
        """
        Args:
            limit: Size in bytes that a log keeps; older bytes are dropped.
            count: Called with "log_bytes" and the number of bytes stored.
            late: Whether to accept logs of an ended attempt, from its folder.
        """
        self._database = database
        self._attempt_id = attempt_id
        self._now = now
        self._limit = limit
        self._count = count
        self._late = late

    def append(self, rank: str, offset: int, data: bytes, *, allow_gap: bool = False) -> int:
        """Append to a rank's log and return the offset of the next append.

        Args:
            allow_gap: Accept missing bytes before `offset`, because the limit would drop them anyway.

        Raises:
            LogOffsetError: Bytes before `offset` are missing.
            InvalidRequestError: The job has no such rank.
            AttemptEndedError: The attempt has ended.
        """
        with self._database.write() as session:
            jobs, logs = JobRepository(session, self._now), LogRepository(session, self._database)
            lock = jobs.lock_attempt if self._late else jobs.lock_open_attempt
            attempt, job = lock(self._attempt_id)
            if rank != LAUNCH and int(rank) >= job.gpus:
                raise InvalidRequestError(f"rank {rank} does not exist: the job has {job.gpus}", param="rank")
            sequence = jobs.next_sequence(job)
            stream = logs.lock_stream(attempt.id, rank)
            if offset > stream.size and not allow_gap:
                raise LogOffsetError(stream.size)
            stream.size = max(stream.size, offset)
            new = data[stream.size - offset :]
            if new:
                session.add(
                    LogChunk(
                        job_pk=job.pk,
                        attempt_id=attempt.id,
                        rank=rank,
                        offset=stream.size,
                        data=new,
                        sequence=sequence,
                        received_at=self._now,
                    )
                )
            stream.size += len(new)
            end = stream.size
            if end > self._limit:
                logs.drop_before(attempt.id, rank, end - self._limit)
        self._count("log_bytes", len(new))
        return end


def read_log(
    database: Database,
    job_id: str,
    rank: str,
    *,
    attempt: int | None,
    tail: int | None,
    before: int | None = None,
    offset: int,
    limit: int,
    now: datetime,
) -> tuple[int, bytes]:
    """Return bytes of a rank's log and the offset of the first: from `offset` on, or the last `tail` lines.

    Args:
        before: With `tail`, the lines that end before this byte.

    Raises:
        NotFoundError: There is no such job, attempt or log; the message lists the existing logs.
    """
    with database.read() as session:
        logs = LogRepository(session, database)
        row, size = find_log(session, logs, job_id, rank, attempt, now)
        if row is None:
            return 0, b""
        if tail is not None:
            return _tail(logs, row.id, rank, tail, limit, size if before is None else min(before, size))
        return _from_offset(logs, row.id, rank, offset, limit, size)


def find_log(
    session: Session, logs: LogRepository, job_id: str, rank: str, attempt: int | None, now: datetime
) -> tuple[Attempt | None, int]:
    """Return the attempt of a log, by default the job's newest, and the log's size; the attempt is None before the
    job's first attempt.

    Raises:
        NotFoundError: There is no such job, attempt or log; the message lists the existing logs.
    """
    jobs = JobRepository(session, now)
    job = jobs.get(job_id)
    row = jobs.find_attempt(job, attempt)
    if row is None:
        if attempt is not None:
            raise NotFoundError(f"the job has no attempt {attempt}", param="attempt", code="attempt_not_found")
        return None, 0
    sizes = logs.sizes(row.id)
    if rank in sizes:
        return row, sizes[rank]
    if (not sizes and attempt is None) or rank == LAUNCH or int(rank) < job.gpus:
        return row, 0  # the rank exists and has written nothing yet
    existing = f"logs exist for: {', '.join(sorted(sizes))}" if sizes else "the attempt has no logs yet"
    raise NotFoundError(f"there is no log of rank {rank} in attempt {row.number}; {existing}", param="rank")


def _from_offset(
    logs: LogRepository, attempt_id: str, rank: str, offset: int, limit: int, size: int
) -> tuple[int, bytes]:
    chunks = logs.chunks(attempt_id, rank, offset=offset, limit=limit)
    if not chunks:
        return min(offset, size), b""
    data = b"".join(chunk.data for chunk in chunks)
    first = chunks[0].offset
    if offset < first:
        # The notice replaces the last dropped bytes, so that offsets do not change.
        notice = f"[trainyard: the first {first} bytes of this log were dropped]\n".encode()[-first:]
        first, data = first - len(notice), notice + data
    skip = max(0, offset - first)
    return first + skip, data[skip : skip + limit]


def _tail(logs: LogRepository, attempt_id: str, rank: str, lines: int, limit: int, end: int) -> tuple[int, bytes]:
    # A log may have as many chunks as bytes, so each chunk is looked at once.
    chunks: list[bytes] = []
    size, breaks = 0, 0
    for offset, data in logs.raw_chunks(attempt_id, rank, before=end):
        part = data[: end - offset]
        chunks.append(part)
        size += len(part)
        breaks += part.count(b"\n")
        if breaks > lines or size >= limit:
            break
    text = b"".join(reversed(chunks))[-limit:]
    last = b"".join(text.splitlines(keepends=True)[-lines:]) if lines else b""
    return end - len(last), last


def find_position(
    database: Database,
    job_id: str,
    rank: str,
    *,
    attempt: int | None,
    time: datetime | None,
    step: int | None,
    now: datetime,
) -> LogPosition:
    """Return where the log was at a time, or when a step was done.

    Args:
        attempt: Default: the newest; of a step, the newest that did it.

    Raises:
        InvalidRequestError: Neither a time nor a step is given, or both.
        NotFoundError: There is no such job, attempt, log or step.
    """
    if (time is None) == (step is None):
        raise InvalidRequestError("give either `time` or `step`", param="time")
    with database.read() as session:
        jobs, logs = JobRepository(session, now), LogRepository(session, database)
        job = jobs.get(job_id)
        if step is not None:
            done = logs.time_of_step(job.pk, step, jobs.find_attempt(job, attempt) if attempt else None)
            if done is None:
                raise NotFoundError(
                    f"the job has no point at step {step} or later", param="step", code="step_not_found"
                )
            time, execution = done
            attempt = attempt or logs.attempt_of_execution(job.pk, execution)
        assert time is not None
        row, size = find_log(session, logs, job_id, rank, attempt, now)
        if row is None:
            raise NotFoundError("the job has no attempt yet", param="attempt", code="attempt_not_found")
        offset = logs.offset_at(row.id, rank, time)
        return LogPosition(attempt=row.number, rank=rank, offset=size if offset is None else offset, time=time)
