"""A job's stream: everything that has a place in its sequence, in that order, from any place on."""

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from pydantic import BaseModel

from service.attempts.repository import ReportRepository, StoredPoint
from service.db.engine import Database
from service.db.models import Event, Job
from service.jobs.repository import JobRepository
from service.jobs.schemas import checkpoint_resource, event_resource, progress_resource
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.reports import Point
from trainyard.contract.wire.stream_events import LogUpdate, MetricsUpdate, StatusUpdate, StreamType

BATCH = 1000


@dataclass(frozen=True)
class Message:
    """One server-sent event. The id is the place in the job's sequence, or in that of all jobs; to resume, send it as
    Last-Event-ID."""

    id: int | str
    type: StreamType
    data: BaseModel

    def encode(self) -> str:
        return f"id: {self.id}\nevent: {self.type}\ndata: {self.data.model_dump_json(by_alias=True)}\n\n"


@dataclass(frozen=True)
class Slice:
    """What came after a place, how far that reaches, and whether anything can come after it."""

    messages: list[Message]
    reached: int
    over: bool


def read_slice(database: Database, job_id: str, after: int, *, run: RunLayout, logs: bool, now: datetime) -> Slice:
    """The next messages. Every kind is cut at the same place, so that the order holds across kinds."""
    with database.read() as session:
        jobs, reports = JobRepository(session, now), ReportRepository(session, database)
        job = jobs.get(job_id)
        if job.sequence < after:
            after = 0  # told by a database that was restored since: nobody knows what was missed
        if job.sequence == after:
            return Slice([], after, job.status in TERMINAL)
        events = reports.events_after(job.pk, after, BATCH)
        points = reports.points_after(job.pk, after, BATCH * 4)
        checkpoints = reports.checkpoints_after(job.pk, after, BATCH)
        chunks = reports.logs_after(job.pk, after, BATCH // 10) if logs else []
        resumed = reports.executions(job.pk)
    reached = min(
        job.sequence,
        _horizon([event.sequence for event in events], BATCH),
        _horizon([point.sequence for point in points], BATCH * 4),
        _horizon([checkpoint.sequence for checkpoint in checkpoints], BATCH),
        _horizon([chunk.sequence for chunk, _ in chunks], BATCH // 10),
    )
    messages = [_event(job, event, now) for event in events]
    messages += _metrics(job, points, resumed, now)
    messages += [Message(row.sequence, "checkpoint", checkpoint_resource(job.id, row, run)) for row in checkpoints]
    messages += [
        Message(
            chunk.sequence,
            "log",
            LogUpdate(attempt=number, rank=chunk.rank, offset=chunk.offset, text=chunk.data.decode(errors="replace")),
        )
        for chunk, number in chunks
    ]
    kept = sorted((m for m in messages if int(m.id) <= reached), key=lambda m: int(m.id))
    return Slice(kept, reached, job.status in TERMINAL and reached == job.sequence)


def _horizon(sequences: list[int], limit: int) -> int:
    """How far a cut list is whole: its last sequence may go on beyond the cut, so that one is left for later."""
    if len(sequences) < limit:
        return 2**62
    return sequences[-1] - 1 if sequences[-1] > sequences[0] else sequences[-1]


def _event(job: Job, event: Event, now: datetime) -> Message:
    if event.type != "status":
        return Message(event.sequence, "event", event_resource(job.id, event))
    status = StatusUpdate(
        status=event.data["status"],
        status_reason=event.data["reason"],
        status_message=event.message,
        progress=progress_resource(job, now) if event.data["status"] == job.status else None,
    )
    return Message(event.sequence, "status", status)


def _metrics(job: Job, points: list[StoredPoint], resumed: dict[int, int], now: datetime) -> list[Message]:
    found = []
    for (sequence, execution), group in groupby(points, key=lambda point: (point.sequence, point.execution)):
        update = MetricsUpdate(
            execution=execution,
            resumed_from_step=resumed.get(execution, 0),
            points=[Point(key=p.key, step=p.step, value=p.value, time=p.time) for p in group],
            progress=progress_resource(job, now),
        )
        found.append(Message(sequence, "metrics", update))
    return found
