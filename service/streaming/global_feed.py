"""The stream of all jobs: status, events, checkpoints and the latest metrics of each, in one durable order."""

from collections.abc import Collection
from datetime import datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from service.core.skipped_rows import log_skipped_row
from service.db.engine import Database
from service.db.models import Checkpoint, Event, Job
from service.jobs.schemas import checkpoint_resource, event_resource, progress_resource, shown_metrics
from service.projects.repository import ProjectRepository
from service.streaming.broadcaster import StreamOffset
from service.streaming.job_stream import Message, MessageBuilder, ShownTo, build_messages, status_fields
from service.streaming.repository import Entry, FeedRepository
from trainyard.contract.layout import RunLayout
from trainyard.contract.loss_metric import choose_loss
from trainyard.contract.wire.stream_events import JobMetricsUpdate, JobStatusUpdate

_MAX_ENTRIES = 200
_MAX_CHARS = 1024 * 1024
"""Characters of the messages in a read, which ends after the entry that exceeds it."""
END_OF_ENTRY = 2**62
"""The `within` of an offset after the last message of an entry."""


def parse_offset(text: str) -> StreamOffset | None:
    """Return the offset of an event id such as `12-34`; None for any other text."""
    position, dash, within = text.partition("-")
    if not dash or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (position, within)):
        return None
    return StreamOffset(int(position), int(within))


class FeedPart(NamedTuple):
    """The messages after an offset, and the offset that they reach."""

    messages: list[tuple[StreamOffset, Message, ShownTo]]
    """Each with its offset and who may read it."""
    offset: StreamOffset
    more: bool
    gap: bool
    """The offset was trimmed or is unknown; messages may be missing."""


def append_to_feed(database: Database, jobs: Collection[int] | None) -> int:
    """Append the news of these jobs, or of all, to the feed; return its newest position."""
    with database.read() as session:
        repository = FeedRepository(session, database)
        newest = repository.newest()
        if not repository.lagging_jobs(jobs):
            return newest
    with database.write() as session:
        return FeedRepository(session, database).append(jobs)


def read_feed(database: Database, after: StreamOffset, *, runs: Path, now: datetime) -> FeedPart:
    """Return the next messages of the stream of all jobs."""
    with database.read() as session:
        repository = FeedRepository(session, database)
        first = after.position + 1 if after.within >= END_OF_ENTRY else after.position
        entries = repository.entries_from(first, _MAX_ENTRIES)
        gap = after.position > 0 and bool(entries) and entries[0].position > first and repository.oldest() > first
        if not entries and after.position > (newest := repository.newest()):
            # A restored database is behind the offsets that its former streams sent.
            return FeedPart([], StreamOffset(newest, END_OF_ENTRY), more=False, gap=True)
        jobs = repository.jobs({entry.job_pk for entry in entries})
        readers = ProjectRepository(session).readers({job.project for job in jobs.values() if job.project})
        messages: list[tuple[StreamOffset, Message, ShownTo]] = []
        reached, more, size = after, len(entries) == _MAX_ENTRIES, 0
        for entry in entries:
            begin = after.within + 1 if entry.position == after.position else 0
            part = repository.readable_part(entry._replace(first=max(entry.first, begin)))
            job = jobs[entry.job_pk]
            part_messages = _readable_messages(repository, job, entry, part, runs, now)
            shown_to = ShownTo(job.created_by, job.project, readers.get(job.project or ""))
            messages += [(offset, message, shown_to) for offset, message in part_messages]
            size += sum(len(message.text) for _, message in part_messages)
            is_whole = part.last == entry.last
            reached = StreamOffset(entry.position, END_OF_ENTRY if is_whole else part.last)
            if not is_whole or size > _MAX_CHARS:
                more = True
                break
    new = [entry for entry in messages if entry[0] > after]
    return FeedPart(new, max(reached, after), more, gap)


def _readable_messages(
    repository: FeedRepository, job: Job, entry: Entry, part: Entry, runs: Path, now: datetime
) -> list[tuple[StreamOffset, Message]]:
    """Return the messages of a part; none if its rows cannot be decoded, which must not end the streams of others."""
    try:
        return _messages(repository, job, entry, part, runs, now)
    except SQLAlchemyError:
        raise
    except Exception as error:
        log_skipped_row((job.pk, entry.first), error)
        return []


def _messages(
    repository: FeedRepository, job: Job, entry: Entry, part: Entry, runs: Path, now: datetime
) -> list[tuple[StreamOffset, Message]]:
    def offset(sequence: int) -> StreamOffset:
        return StreamOffset(entry.position, sequence)

    run = RunLayout(runs / job.id)
    builders: list[tuple[int, MessageBuilder]] = []
    if repository.has_points(entry):  # of the whole entry: its other parts come after this message
        builders.append((0, partial(_metrics, job, offset(0), now)))
    builders += [
        (row.sequence, partial(_event, job, row, offset(row.sequence), now)) for row in repository.events(part)
    ]
    builders += [
        (row.sequence, partial(_checkpoint, job, row, offset(row.sequence), run))
        for row in repository.checkpoints(part)
    ]
    messages = [(offset(sequence), message) for sequence, message in build_messages(job.pk, builders)]
    return sorted(messages, key=itemgetter(0))


def _metrics(job: Job, offset: StreamOffset, now: datetime) -> Message:
    update = JobMetricsUpdate(
        job_id=job.id,
        name=job.name,
        values=shown_metrics(job.latest),
        loss_metric=choose_loss(job.latest),
        progress=progress_resource(job, now),
    )
    return Message(str(offset), "metrics", update)


def _event(job: Job, event: Event, offset: StreamOffset, now: datetime) -> Message:
    if event.type != "status":
        return Message(str(offset), "event", event_resource(job.id, event))
    update = JobStatusUpdate(job_id=job.id, name=job.name, **status_fields(job, event, now))
    return Message(str(offset), "status", update)


def _checkpoint(job: Job, row: Checkpoint, offset: StreamOffset, run: RunLayout) -> Message:
    return Message(str(offset), "checkpoint", checkpoint_resource(job.id, row, run))
