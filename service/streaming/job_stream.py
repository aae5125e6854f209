"""The stream of a job: everything with a number in its sequence, in that order, from any number on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from pydantic import BaseModel

from service.core.skipped_rows import log_skipped_row
from service.db.engine import Database
from service.db.models import Checkpoint, Event, Job, LogChunk
from service.jobs.repository import JobRepository
from service.jobs.schemas import checkpoint_resource, event_resource, progress_resource
from service.metrics.repository import CurveRepository
from service.projects.repository import ProjectRepository
from service.streaming.repository import JobStreamRepository, StoredPoint, last_within_bounds
from trainyard.contract.base import MAX_SAFE_INT
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.reports import Point
from trainyard.contract.wire.stream_events import LogUpdate, MetricsUpdate, StatusUpdate, StreamType

_MAX_POINTS = 4000


@dataclass
class Message:
    """One server-sent event. To resume after it, a client sends its id as Last-Event-ID."""

    id: int | str
    type: StreamType
    data: BaseModel

    @cached_property
    def text(self) -> str:
        return f"id: {self.id}\nevent: {self.type}\ndata: {self.data.model_dump_json(by_alias=True)}\n\n"


MessageBuilder = Callable[[], Message]


def build_messages(job_pk: int, builders: Iterable[tuple[int, MessageBuilder]]) -> list[tuple[int, Message]]:
    """Return the encoded message of each row with its sequence number. A row that cannot be shown is skipped.

    One such row would otherwise end the streams of all readers, because each read starts at the same row. It is logged
    once.
    """
    messages = []
    for sequence, build in builders:
        try:
            message = build()
            _ = message.text
        except Exception as error:
            log_skipped_row((job_pk, sequence), error)
            continue
        messages.append((sequence, message))
    return messages


class ShownTo(NamedTuple):
    """Who may read a message: the last fields of `service.streaming.broadcaster.Item`."""

    owner: str
    project: str | None
    readers: frozenset[str] | None


@dataclass(frozen=True)
class StreamPart:
    """The messages after a sequence number, and the number that they reach."""

    messages: list[Message]
    sequence: int
    finished: bool
    """Nothing can follow."""
    shown_to: ShownTo


def read_job_stream(
    database: Database, job_id: str, after: int, *, run: RunLayout, logs: bool, now: datetime
) -> StreamPart:
    """Return the next messages. All kinds are cut at the same number, so that the order holds across kinds.

    Raises:
        NotFoundError: There is no such job.
    """
    with database.read() as session:
        stream, job = JobStreamRepository(session), JobRepository(session, now).get(job_id)
        readers = ProjectRepository(session).readers({job.project} if job.project else ())
        shown_to = ShownTo(job.created_by, job.project, readers.get(job.project or ""))
        if job.sequence < after:
            after = 0  # the number is from before a restore of the database: resend everything
        if job.sequence == after:
            return StreamPart([], after, job.status in TERMINAL, shown_to)
        points = stream.points_after(job.pk, after, _MAX_POINTS)
        numbers = [(point.sequence, 0) for point in points]
        readable = stream.last_readable(job.pk, after, logs=logs)
        reached = min(job.sequence, readable, last_within_bounds(numbers, _MAX_POINTS))
        events = stream.events(job.pk, after, reached)
        checkpoints = stream.checkpoints(job.pk, after, reached)
        chunks = stream.logs(job.pk, after, reached) if logs else []
        resumed = CurveRepository(session, database).executions(job.pk)
    builders: list[tuple[int, MessageBuilder]] = [(row.sequence, partial(_event, job, row, now)) for row in events]
    builders += [(row.sequence, partial(_checkpoint, job, row, run)) for row in checkpoints]
    builders += [(chunk.sequence, partial(_log, chunk, number)) for chunk, number in chunks]
    for (sequence, execution), group in groupby(points, key=lambda point: (point.sequence, point.execution)):
        builders.append((sequence, partial(_metrics, job, list(group), resumed.get(execution, 0), now)))
    due = [(sequence, build) for sequence, build in builders if sequence <= reached]
    if reached == job.sequence and _is_in_long_phase(job) and all(sequence != reached for sequence, _ in due):
        due.append((reached, partial(_phase, job, max(resumed.items(), default=(1, 0)), now)))
    messages = [message for _, message in sorted(build_messages(job.pk, due), key=itemgetter(0))]
    return StreamPart(messages, reached, job.status in TERMINAL and reached == job.sequence, shown_to)


def status_fields(job: Job, event: Event, now: datetime) -> dict[str, Any]:
    """Return the common fields of status updates. Only the current status has the job's progress."""
    return {
        "status": event.data["status"],
        "status_reason": event.data["reason"],
        "status_message": event.message,
        "condition": event.data.get("condition"),
        "progress": progress_resource(job, now) if event.data["status"] == job.status else None,
    }


def _event(job: Job, event: Event, now: datetime) -> Message:
    if event.type != "status":
        return Message(event.sequence, "event", event_resource(job.id, event))
    return Message(event.sequence, "status", StatusUpdate(**status_fields(job, event, now)))


def _checkpoint(job: Job, row: Checkpoint, run: RunLayout) -> Message:
    return Message(row.sequence, "checkpoint", checkpoint_resource(job.id, row, run))


def _log(chunk: LogChunk, attempt: int) -> Message:
    text = chunk.data.decode(errors="replace")
    return Message(chunk.sequence, "log", LogUpdate(attempt=attempt, rank=chunk.rank, offset=chunk.offset, text=text))


def _is_in_long_phase(job: Job) -> bool:
    """Return whether the job reports progress without points: it evaluates, saves or exports."""
    return job.status == "running" and (job.progress or {}).get("phase") in ("evaluating", "saving", "exporting")


def _phase(job: Job, execution: tuple[int, int], now: datetime) -> Message:
    number, resumed_from_step = execution
    progress = progress_resource(job, now)
    update = MetricsUpdate(execution=number, resumed_from_step=resumed_from_step, points=[], progress=progress)
    return Message(job.sequence, "metrics", update)


def _metrics(job: Job, points: list[StoredPoint], resumed_from_step: int, now: datetime) -> Message:
    update = MetricsUpdate(
        execution=points[0].execution,
        resumed_from_step=resumed_from_step,
        points=[Point(key=p.key, step=p.step, value=p.value, time=p.time) for p in points if p.step <= MAX_SAFE_INT],
        progress=progress_resource(job, now),
    )
    return Message(points[0].sequence, "metrics", update)
