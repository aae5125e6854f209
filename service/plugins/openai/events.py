"""The events of a job in pages: its history as messages, and the losses of its steps as metrics.

An event is never changed or withdrawn, and its id states its position, so that a client can read on from any of them.
"""

import re
from math import isfinite

from service.db.engine import Database
from service.db.models import Event, Job
from service.plugins.openai.errors import in_openai_terms, invalid_after
from service.plugins.openai.repository import ACCURACIES, TRAIN_LOSS, FineTuneRepository, LossPoint
from service.plugins.openai.schemas import Document, list_document, metric_values, seconds

_ID = re.compile(r"ftevent_([0-9a-z]{12})_([0-9]{1,18})(?:_([0-9]{1,18})_([0-9]{1,18}))?", re.ASCII)
"""A part of the job's id, the number in the job's sequence, and of metrics the step and the key."""
_ID_PART = 12
"""Characters from the end of a job's id that the ids of its events contain."""
_LEVELS = {"info": "info", "warning": "warn", "error": "error"}

_Position = tuple[int, int, int]
"""Number in the job's sequence, step, and the key of the metric; the last two are -1 for a message."""


def read_events(database: Database, job_id: str, after: str | None, limit: int) -> Document:
    """Return the events after a given event, newest first.

    Raises:
        InvalidRequestError: `after` is not the id of an event of this job.
        NotFoundError: There is no such job.
    """
    with database.read() as session:
        repository = FineTuneRepository(session)
        _, job = repository.get(job_id)
        position = None if after is None else _position_of(job, after)
        events = repository.events(job, None if position is None else _first_sequence(position), limit + 1)
        losses = repository.losses(job, position, limit + 1)
    entries: list[tuple[_Position, Document]] = [((event.sequence, -1, -1), _message(job, event)) for event in events]
    entries += [((point.sequence, point.step, key), _metrics(job, key, point)) for key, point in losses]
    entries.sort(key=lambda pair: pair[0], reverse=True)
    return list_document([document for _, document in entries[:limit]], len(entries) > limit)


def _position_of(job: Job, event_id: str) -> _Position:
    match = _ID.fullmatch(event_id)
    if match is None or match[1] != job.id[-_ID_PART:] or int(match[2]) > job.sequence:
        raise invalid_after(event_id, "event")
    return (int(match[2]), -1, -1) if match[3] is None else (int(match[2]), int(match[3]), int(match[4]))


def _first_sequence(position: _Position) -> int:
    """Return the number before which messages follow a position: messages with the same number follow its metrics."""
    return position[0] if position[1] < 0 else position[0] + 1


def _message(job: Job, event: Event) -> Document:
    return {
        "object": "fine_tuning.job.event",
        "id": f"ftevent_{job.id[-_ID_PART:]}_{event.sequence}",
        "created_at": seconds(event.created_at),
        "level": _LEVELS.get(event.level, "info"),
        "message": in_openai_terms(event.message),
        "data": {"type": event.type, **event.data},
        "type": "message",
    }


def _metrics(job: Job, key: int, point: LossPoint) -> Document:
    total_steps = (job.progress or {}).get("total_steps")
    training = point.key == TRAIN_LOSS
    of = f"/{total_steps}" if isinstance(total_steps, int) else ""
    shown = f"{point.value:.4f}" if isfinite(point.value) else str(point.value)
    label = "training loss" if training else "validation loss"
    values = metric_values(job, {point.key: point.value, ACCURACIES[point.key]: point.accuracy})
    return {
        "object": "fine_tuning.job.event",
        "id": f"ftevent_{job.id[-_ID_PART:]}_{point.sequence}_{point.step}_{key}",
        "created_at": seconds(point.time),
        "level": "info",
        "message": f"Step {point.step}{of}: {label}={shown}",
        "data": {"step": point.step, "total_steps": total_steps, **values},
        "type": "metrics",
    }
