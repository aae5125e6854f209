"""Following a job's stream over any number of connections: typed events, each once, until the job is over. Pure."""

from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from trainyard.client.errors import TrainyardError
from trainyard.client.retry import backoff, is_passing
from trainyard.client.sse import RawEvent, SseDecoder
from trainyard.client.wire import Request
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
_TYPES_OF_ALL: dict[str, type[BaseModel]] = {
    "status": JobStatusUpdate,
    "event": EventResource,
    "metrics": JobMetricsUpdate,
    "checkpoint": CheckpointResource,
    "reset": Reset,
}


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream; `match event.data` tells the kinds apart."""

    id: str | None
    """Where to go on from: `client.stream(job_id, last_event_id=event.id)`."""
    type: str
    data: StreamData
    """In the stream of all jobs, a status and metrics name their job."""


class StreamCursor:
    """What has been received so far, and therefore what to ask for next."""

    def __init__(
        self, request: Request[None], last_event_id: str | int | None, patience: float, *, endless: bool = False
    ) -> None:
        self._request = request
        self._endless = endless
        """Of all jobs: that one of them is over is not its end."""
        self._last_event_id = None if last_event_id is None else str(last_event_id)
        self._patience = patience
        self._decoder = SseDecoder()
        self._ended = False
        self._connected_once = False
        self._failures = 0
        self._waited = 0.0

    def request(self) -> Request[None]:
        """The request of the next connection."""
        self._decoder, self._ended = SseDecoder(), False
        if self._last_event_id is None:
            return self._request
        return replace(self._request, headers={**self._request.headers, "Last-Event-ID": self._last_event_id})

    def connected(self, status_code: int) -> None:
        """The service answered; 204 is its way to say that the stream is at its end."""
        self._connected_once = True
        self._ended = status_code == 204

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The typed events in these bytes; kinds that this client does not know are left out."""
        self._failures, self._waited = 0, 0.0
        events = [self._typed(raw) for raw in self._decoder.feed(chunk)]
        return [event for event in events if event is not None]

    def delay(self, error: TrainyardError) -> float | None:
        """Seconds before connecting again after this error; None: it is final.

        A service that was never reached is reported soon; one that was is waited for, since services restart.
        """
        self._failures += 1
        if not is_passing(error):
            return None
        wait = backoff(self._failures) if error.retry_after is None else error.retry_after
        self._waited += wait
        patient = self._waited <= self._patience if self._connected_once else self._failures < 4
        return wait if patient else None

    @property
    def complete(self) -> bool:
        """Nothing more will come: the service said so, or a final status was the connection's last event."""
        return self._ended

    def pause(self) -> float:
        """Seconds before connecting again after the service closed the stream of a job that is not over."""
        self._failures += 1
        return backoff(self._failures)

    def _typed(self, raw: RawEvent) -> StreamEvent | None:
        if raw.id is not None:
            self._last_event_id = raw.id
        model = (_TYPES_OF_ALL if self._endless else _TYPES).get(raw.type)
        if model is None:
            return None
        data: Any = model.model_validate_json(raw.data)
        self._ended = not self._endless and isinstance(data, StatusUpdate) and data.status in TERMINAL
        return StreamEvent(raw.id, raw.type, data)
