"""The stream of all jobs: status, events, checkpoints and the newest metrics of each, in one durable order."""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from service.db.engine import Database
from service.db.models import Event, Job
from service.jobs.schemas import checkpoint_resource, event_resource, progress_resource
from service.streaming.job_stream import Message
from service.streaming.repository import Entry, FeedRepository
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.stream_events import JobMetricsUpdate, JobStatusUpdate

_ENTRIES = 200


class Place(NamedTuple):
    """In the stream of all jobs: an entry of the feed, and how far in it."""

    position: int
    within: int

    def __str__(self) -> str:
        return f"{self.position}-{self.within}"


WHOLE = 2**62


def parse_place(text: str) -> Place | None:
    """None where it is no place."""
    position, dash, within = text.partition("-")
    if not dash or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (position, within)):
        return None
    return Place(int(position), int(within))


class FeedSlice(NamedTuple):
    """What came after a place, and how far that reaches."""

    messages: list[tuple[Place, Message]]
    reached: Place
    more: bool
    gap: bool
    """What the place stands for is no more, or never was: between there may be what nobody can tell."""


def extend_feed(database: Database, jobs: Collection[int] | None) -> int:
    """Give what these jobs, or all, have new its place in the feed; the newest number."""
    with database.read() as session:
        repository = FeedRepository(session, database)
        head = repository.head()
        if not repository.behind(jobs):
            return head
    with database.write() as session:
        return FeedRepository(session, database).extend(jobs)


def read_feed(database: Database, after: Place, *, runs: Path, now: datetime) -> FeedSlice:
    """The next messages of the stream of all jobs."""
    with database.read() as session:
        repository = FeedRepository(session, database)
        wanted = after.position + 1 if after.within >= WHOLE else after.position
        entries = repository.after(wanted - 1, _ENTRIES)
        gap = after.position > 0 and bool(entries) and entries[0].position > wanted and repository.oldest() > wanted
        if not entries and after.position > (head := repository.head()):
            # A database that was restored is behind what its streams have told.
            return FeedSlice([], Place(head, WHOLE), more=False, gap=True)
        jobs = repository.jobs({entry.job_pk for entry in entries})
        messages: list[tuple[Place, Message]] = []
        for entry in entries:
            messages += _messages(repository, jobs[entry.job_pk], entry, runs, now)
    fresh = [(place, message) for place, message in messages if place > after]
    reached = Place(entries[-1].position, WHOLE) if entries else after
    return FeedSlice(fresh, max(reached, after), len(entries) == _ENTRIES, gap)


def _messages(
    repository: FeedRepository, job: Job, entry: Entry, runs: Path, now: datetime
) -> list[tuple[Place, Message]]:
    found: list[tuple[Place, Message]] = []
    if repository.has_points(entry):
        progress = progress_resource(job, now)
        update = JobMetricsUpdate(job_id=job.id, name=job.name, values=job.latest, progress=progress)
        found.append((Place(entry.position, 0), Message(f"{entry.position}-0", "metrics", update)))
    for event in repository.events(entry):
        place = Place(entry.position, event.sequence)
        found.append((place, _event(job, event, place, now)))
    for row in repository.checkpoints(entry):
        place = Place(entry.position, row.sequence)
        resource = checkpoint_resource(job.id, row, RunLayout(runs / job.id))
        found.append((place, Message(str(place), "checkpoint", resource)))
    return sorted(found, key=lambda one: one[0])


def _event(job: Job, event: Event, place: Place, now: datetime) -> Message:
    if event.type != "status":
        return Message(str(place), "event", event_resource(job.id, event))
    status = JobStatusUpdate(
        job_id=job.id,
        name=job.name,
        status=event.data["status"],
        status_reason=event.data["reason"],
        status_message=event.message,
        progress=progress_resource(job, now) if event.data["status"] == job.status else None,
    )
    return Message(str(place), "status", status)
