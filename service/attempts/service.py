"""Taking in what a worker reports: each call one transaction, all or nothing, harmless when repeated."""

from collections.abc import Callable
from datetime import datetime
from typing import Literal

from service.attempts.repository import ReportRepository
from service.core.errors import ConflictError, LogOffsetError, NotFoundError, ServiceError
from service.core.ids import new_checkpoint_id
from service.db.engine import Database
from service.db.models import Attempt, Checkpoint, Event, Job, LogChunk
from service.jobs.repository import JobRepository
from service.jobs.service import pending_profile
from service.metrics.ingest.decode import batch_from_model
from service.metrics.ingest.writer import PointWriter
from trainyard.contract.wire.reports import (
    CheckpointReport,
    Claim,
    ClaimGrant,
    EventsBatch,
    FinishRecord,
    HeartbeatReply,
    MetricsBatch,
)


def _ignore(_kind: str, _amount: int) -> None:
    """Nobody counts."""


CLAIMABLE = frozenset({"submitting", "pending", "running", "lost"})


class Ingest:
    """Reports of one attempt, from its worker or, once that is gone, from what it left on disk."""

    def __init__(self, database: Database, attempt_id: str, now: datetime, count: Callable[[str, int], None] = _ignore):
        """`count` is told what was taken in: its kind and how much."""
        self._count = count
        self._database = database
        self._attempt_id = attempt_id
        self._now = now

    def claim(self, claim: Claim) -> ClaimGrant:
        """Grant the attempt to its first claimant.

        Raises:
            ConflictError: another run has it, or it is no longer wanted; the worker leaves without a trace.
        """
        with self._database.write() as session:
            jobs, reports = JobRepository(session, self._now), ReportRepository(session, self._database)
            attempt, job = self._rows(jobs, reports)
            wanted = job.attempt_id == attempt.id and job.desired == "run" and job.status in CLAIMABLE
            nodes = sorted({*attempt.nodes, claim.where})
            if not wanted or not reports.claim(attempt.id, claim.nonce, self._now, nodes):
                raise ConflictError(f"attempt {attempt.number} of job {job.id} is not to be run", code="claim_refused")
            if attempt.scheduler == "slurm" and claim.scheduler_id not in (None, attempt.scheduler_id):
                # Of two jobs of one attempt the claimant is the one to watch, whichever answer came back from sbatch.
                attempt.scheduler_id = claim.scheduler_id
                attempt.submitted_at = attempt.submitted_at or self._now
                jobs.add_event(job, "submitted", f"the scheduler has it as {claim.scheduler_id}, says its worker")
            if job.status != "running":
                jobs.transition(job, "running", f"running on {', '.join(nodes)}")
            return ClaimGrant(execution=attempt.execution)

    def heartbeat(self) -> HeartbeatReply:
        """Note a sign of life and tell what is wanted by now."""
        with self._database.write() as session:
            jobs, reports = JobRepository(session, self._now), ReportRepository(session, self._database)
            attempt, job = self._rows(jobs, reports)
            attempt.heartbeat_at = self._now
            # One that is over has no place in the queue, and the job may be given another before it hears of that.
            replaced = job.attempt_id != attempt.id or attempt.ended_at is not None
            if job.desired == "cancelled" or replaced:
                return HeartbeatReply(stop="cancel")
            stop: Literal["pause"] | None = "pause" if job.desired == "paused" or job.status == "pausing" else None
            return HeartbeatReply(stop=stop, profile=pending_profile(jobs, job, attempt))

    def metrics(self, batch: MetricsBatch) -> int:
        """Store points; a point that is there already stays as it is.

        Returns:
            How many were new.
        """
        (outcome,) = PointWriter(self._database).write([(self._attempt_id, batch_from_model(batch))], self._now)
        if isinstance(outcome, ServiceError):
            raise outcome
        self._count("points", len(batch.points))
        return outcome.inserted

    def events(self, batch: EventsBatch) -> int:
        """Add lines to the job's history, each once."""
        with self._database.write() as session:
            jobs, reports = JobRepository(session, self._now), ReportRepository(session, self._database)
            attempt, job = self._rows(jobs, reports)
            _check_execution(attempt, batch.execution)
            for event in batch.events:
                sequence = jobs.next_sequence(job)
                if reports.has_event(job.pk, batch.execution, event.sequence):
                    continue
                reports.add(
                    Event(
                        job_pk=job.pk,
                        sequence=sequence,
                        type=event.type,
                        level=event.level,
                        message=event.message,
                        data=event.model_dump(mode="json")["data"],
                        created_at=self._now,
                        execution=batch.execution,
                        worker_sequence=event.sequence,
                    ),
                )
        self._count("events", len(batch.events))
        return len(batch.events)

    def checkpoint(self, report: CheckpointReport) -> None:
        """Note a complete checkpoint, and those that retention removed; not one from before a retry from scratch."""
        with self._database.write() as session:
            jobs, reports = JobRepository(session, self._now), ReportRepository(session, self._database)
            attempt, job = self._rows(jobs, reports)
            _check_execution(attempt, report.execution)
            if report.execution < job.first_execution:
                return
            sequence = jobs.next_sequence(job)
            row = reports.checkpoint(job.pk, report.step)
            if row is None:
                row = Checkpoint(id=new_checkpoint_id(self._now), job_pk=job.pk, step=report.step, execution=0)
                reports.add(row)
            if report.execution >= row.execution:
                _describe(row, report, sequence)
                job.last_checkpoint_step = report.step
            session.flush()
            reports.forget_checkpoints(job.pk, report.removed_steps, self._now)
        self._count("checkpoints", 1)

    def log(self, rank: str, offset: int, data: bytes, limit: int, *, skip: bool = False) -> int:
        """Append to a rank's log; what was sent before is not stored twice. Of the newest, `limit` bytes are kept.

        Args:
            skip: what is missing before `offset` would not be kept anyway.

        Returns:
            The offset at which the next append starts.

        Raises:
            LogOffsetError: bytes between are missing.
        """
        with self._database.write() as session:
            jobs, reports = JobRepository(session, self._now), ReportRepository(session, self._database)
            attempt, job = self._rows(jobs, reports)
            sequence = jobs.next_sequence(job)
            stream = reports.log_stream(attempt.id, rank)
            if offset > stream.size and not skip:
                raise LogOffsetError(stream.size)
            stream.size = max(stream.size, offset)
            fresh = data[stream.size - offset :]
            if fresh:
                reports.add(
                    LogChunk(
                        job_pk=job.pk,
                        attempt_id=attempt.id,
                        rank=rank,
                        offset=stream.size,
                        data=fresh,
                        sequence=sequence,
                    ),
                )
            stream.size += len(fresh)
            end = stream.size
            if end > limit:
                reports.drop_log(attempt.id, rank, end - limit)
        self._count("log_bytes", len(fresh))
        return end

    def finish(self, record: FinishRecord) -> None:
        """Keep the last word of the attempt; the reconciler draws the conclusion."""
        with self._database.write() as session:
            jobs, reports = JobRepository(session, self._now), ReportRepository(session, self._database)
            attempt, _ = self._rows(jobs, reports)
            _check_execution(attempt, record.execution)
            if attempt.finish is None or record.execution >= attempt.finish["execution"]:
                attempt.finish = record.model_dump(mode="json")

    def _rows(self, jobs: JobRepository, reports: ReportRepository) -> tuple[Attempt, Job]:
        """The attempt and its job, which is locked first so that all writers of a job take their locks in one order."""
        job = jobs.get_for_update(jobs.get_attempt(self._attempt_id).job_pk)
        return jobs.reload_attempt(self._attempt_id), job


def _check_execution(attempt: Attempt, execution: int) -> None:
    if not attempt.execution <= execution <= attempt.execution + attempt.max_restarts:
        raise ConflictError(
            f"execution {execution} is not one of this attempt", code="stale_execution", param="execution"
        )


def _describe(row: Checkpoint, report: CheckpointReport, sequence: int) -> None:
    row.execution = report.execution
    row.size_bytes = report.size_bytes
    row.digest = report.digest
    row.world_size = report.world_size
    row.metrics = report.model_dump(mode="json")["metrics"]
    row.created_at = report.time
    row.deleted_at, row.removing = None, False
    row.sequence = sequence


def read_log(
    database: Database,
    job_id: str,
    rank: str,
    *,
    attempt: int | None,
    tail: int | None,
    offset: int,
    limit: int,
    now: datetime,
) -> tuple[int, bytes]:
    """Bytes of a rank's log and the offset of the first: from `offset` on, or the last `tail` lines.

    Raises:
        NotFoundError: no such log has arrived; the message lists those that have.
    """
    with database.read() as session:
        jobs, reports = JobRepository(session, now), ReportRepository(session, database)
        job = jobs.get(job_id)
        row = jobs.find_attempt(job, attempt)
        if row is None and attempt is not None:
            raise NotFoundError(f"the job has no attempt {attempt}", param="attempt", code="attempt_not_found")
        if row is None:
            return 0, b""
        ranks = reports.log_ranks(row.id)
        if rank not in ranks:
            if (not ranks and attempt is None) or rank == "launch" or int(rank) < job.gpus:
                return 0, b""  # it has said nothing so far
            there = f"there are: {', '.join(sorted(ranks))}" if ranks else "nothing of that attempt has arrived yet"
            raise NotFoundError(f"there is no log of rank {rank} in attempt {row.number}; {there}", param="rank")
        if tail is not None:
            return _tail(reports, row.id, rank, tail, limit)
        chunks = reports.log_chunks(row.id, rank, offset=offset, limit=limit)
        if not chunks:
            return min(offset, ranks[rank]), b""
        data = b"".join(chunk.data for chunk in chunks)
        first = chunks[0].offset
        if offset < first:
            # In the place of the last of the dropped bytes, so that offsets stay what they are.
            mark = f"[trainyard: the first {first} bytes of this log were dropped]\n".encode()[-first:]
            first, data = first - len(mark), mark + data
        skip = max(0, offset - first)
        return first + skip, data[skip : skip + limit]


def _tail(reports: ReportRepository, attempt_id: str, rank: str, lines: int, limit: int) -> tuple[int, bytes]:
    data, start = b"", 0
    for chunk in reports.log_chunks_backwards(attempt_id, rank):
        data, start = chunk.data + data, chunk.offset
        if data.count(b"\n") > lines or len(data) >= limit:
            break
    kept = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
    return start + len(data) - len(kept), kept
