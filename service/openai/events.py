"""The events of a job in pages: its history as messages, and the losses of its steps as metrics.

An event is never changed or withdrawn, and its id states its position, so that a client can read on from any of them.
"""

import re
from math import isfinite

from service.core.errors import InvalidRequestError
from service.db.engine import Database
from service.db.models import Event, Job
from service.openai.errors import in_openai_terms
from service.openai.repository import ACCURACIES, TRAIN_LOSS, FineTuneRepository, LossPoint
from service.openai.schemas import Document, list_document, metric_values, seconds

_MESSAGE = re.compile(r"ftevent_([0-9]{1,18})", re.ASCII)
_METRICS = re.compile(r"ftevent_([0-9]{1,18})_([0-9]{1,18})_([0-9]{1,18})", re.ASCII)
_LEVELS = {"info": "info", "warning": "warn", "error": "error"}

_Position = tuple[int, int, int]
"""Number in the job's sequence, step, and the key of the metric; the last two are -1 for a message."""


def read_events(database: Database, job_id: str, after: str | None, limit: int) -> Document:
    """Return the events that follow one, newest first.

    Raises:
        InvalidRequestError: `after` is not the id of an event.
        NotFoundError: There is no such job.
    """
    position = _position_of(after)
    with database.read() as session:
        repository = FineTuneRepository(session)
        _, job = repository.get(job_id)
        events = repository.events(job, None if position is None else _first_sequence(position), limit + 1)
        losses = repository.losses(job, position, limit + 1)
    entries: list[tuple[_Position, Document]] = [((event.sequence, -1, -1), _message(event)) for event in events]
    entries += [((point.sequence, point.step, key), _metrics(job, key, point)) for key, point in losses]
    entries.sort(key=lambda pair: pair[0], reverse=True)
    return list_document([document for _, document in entries[:limit]], len(entries) > limit)


def _position_of(event_id: str | None) -> _Position | None:
    if event_id is None:
        return None
    if match := _MESSAGE.fullmatch(event_id):
        return int(match[1]), -1, -1
    if match := _METRICS.fullmatch(event_id):
        return int(match[1]), int(match[2]), int(match[3])
    raise InvalidRequestError(f"{event_id[:80]!r} is not the id of an event", param="after")


def _first_sequence(position: _Position) -> int:
    """Return the number before which messages follow a position: those of the same number follow its metrics."""
    return position[0] if position[1] < 0 else position[0] + 1


def _message(event: Event) -> Document:
    return {
        "object": "fine_tuning.job.event",
        "id": f"ftevent_{event.sequence}",
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
        "id": f"ftevent_{point.sequence}_{point.step}_{key}",
        "created_at": seconds(point.time),
        "level": "info",
        "message": f"Step {point.step}{of}: {label}={shown}",
        "data": {"step": point.step, "total_steps": total_steps, **values},
        "type": "metrics",
    }
