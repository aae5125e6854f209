"""The state of a stream over several connections: typed events, each exactly once. Pure functions."""

from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from trainyard.client.errors import TrainyardError
from trainyard.client.request import Request
from trainyard.client.retry import backoff, is_transient
from trainyard.client.sse import RawEvent, SseDecoder
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import TERMINAL, EventResource
from trainyard.contract.wire.stream_events import (
    JobMetricsUpdate,
    JobStatusUpdate,
    LogUpdate,
    MetricsUpdate,
    Reset,
    StatusUpdate,
)

StreamData = StatusUpdate | EventResource | MetricsUpdate | CheckpointResource | LogUpdate | JobMetricsUpdate | Reset

_TYPES: dict[str, type[BaseModel]] = {
    "status": StatusUpdate,
    "event": EventResource,
    "metrics": MetricsUpdate,
    "checkpoint": CheckpointResource,
    "log": LogUpdate,
}
_GLOBAL_STREAM_TYPES: dict[str, type[BaseModel]] = {
    "status": JobStatusUpdate,
    "event": EventResource,
    "metrics": JobMetricsUpdate,
    "checkpoint": CheckpointResource,
    "reset": Reset,
}


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream; use `match event.data` to distinguish the types."""

    id: str | None
    """Continue after this event with `client.stream(job_id, last_event_id=event.id)`."""
    type: str
    data: StreamData
    """In the stream of all jobs, status and metrics updates have a `job_id`."""


class StreamCursor:
    """The position in a stream, and the delays between connections."""

    def __init__(
        self, request: Request[None], last_event_id: str | int | None, patience: float, *, endless: bool = False
    ) -> None:
        self._request = request
        self._endless = endless
        """True for the stream of all jobs, which does not end with a job."""
        self._last_event_id = None if last_event_id is None else str(last_event_id)
        self._patience = patience
        self._decoder = SseDecoder()
        self._ended = False
        self._connected_once = False
        self._failures = 0
        self._waited = 0.0

    def request(self) -> Request[None]:
        """Return the request of the next connection."""
        self._decoder, self._ended = SseDecoder(), False
        if self._last_event_id is None:
            return self._request
        return replace(self._request, headers={**self._request.headers, "Last-Event-ID": self._last_event_id})

    def connected(self, status_code: int) -> None:
        """Record a connection. The status 204 means that the stream has ended."""
        self._connected_once = True
        self._ended = status_code == 204

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that these bytes complete, without events of unknown types."""
        self._failures, self._waited = 0, 0.0
        events = [self._typed(raw) for raw in self._decoder.feed(chunk)]
        return [event for event in events if event is not None]

    def delay(self, error: TrainyardError) -> float | None:
        """Return the seconds before the next connection after this error. None: the error is final.

        A service that was never reached fails after a few tries; a service that was reached may be restarting.
        """
        self._failures += 1
        if not is_transient(error):
            return None
        wait = backoff(self._failures) if error.retry_after is None else error.retry_after
        self._waited += wait
        patient = self._waited <= self._patience if self._connected_once else self._failures < 4
        return wait if patient else None

    @property
    def complete(self) -> bool:
        """Whether the stream has ended: with 204, or with a terminal status as the connection's last event."""
        return self._ended

    def pause(self) -> float:
        """Return the seconds before the next connection after the service closed the stream of an active job."""
        self._failures += 1
        return backoff(self._failures)

    def _typed(self, raw: RawEvent) -> StreamEvent | None:
        if raw.id is not None:
            self._last_event_id = raw.id
        model = (_GLOBAL_STREAM_TYPES if self._endless else _TYPES).get(raw.type)
        if model is None:
            return None
        data: Any = model.model_validate_json(raw.data)
        self._ended = not self._endless and isinstance(data, StatusUpdate) and data.status in TERMINAL
        return StreamEvent(raw.id, raw.type, data)
