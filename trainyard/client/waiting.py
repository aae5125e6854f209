"""Timeouts of requests, and the polling intervals of `Client.wait`."""

from collections.abc import Callable

import httpx

from trainyard.client.errors import TrainyardError, WaitTimeoutError
from trainyard.client.retry import is_transient
from trainyard.contract.wire.jobs import TERMINAL, JobResource

RESPONSE_TIMEOUT_SECONDS = 30.0
CONNECT_TIMEOUT_SECONDS = 5.0
PLAN_DATA_TIMEOUT_SECONDS = 120.0
"""The service reads data for less than that."""

STREAM_TIMEOUT = httpx.Timeout(45.0, connect=CONNECT_TIMEOUT_SECONDS)
"""The service sends a keep-alive comment every 15 seconds; the connection is lost when three are missing."""

_FIRST_POLL = 0.2
_MAX_POLL = 5.0
_GIVE_UP_SECONDS = 3600.0
"""Seconds after which a service that has become unreachable is an error."""


class Wait:
    """The state of waiting for a job to end."""

    def __init__(self, job_id: str, timeout: float | None, clock: Callable[[], float]) -> None:
        self._job_id = job_id
        self._timeout = timeout
        self._clock = clock
        self._started = self._last_response = clock()
        self._reached = False
        self._delay = _FIRST_POLL

    def has_ended(self, job: JobResource) -> bool:
        """Record a response, and return whether the job has ended."""
        self._last_response, self._reached = self._clock(), True
        return job.status in TERMINAL

    def delay_after(self, error: TrainyardError) -> float:
        """Return the seconds until the next poll. The error is raised if the service was never reached, or is
        unreachable for an hour."""
        lost = not self._reached or self._clock() - self._last_response > _GIVE_UP_SECONDS
        if lost or not is_transient(error):
            raise error
        return self.next_delay()

    def next_delay(self) -> float:
        """Return the seconds until the next poll: they grow from 0.2 to 5 and never exceed the time that is left.

        Raises:
            WaitTimeoutError: no time is left.
        """
        delay, self._delay = self._delay, min(self._delay * 1.5, _MAX_POLL)
        if self._timeout is None:
            return delay
        left = self._timeout - (self._clock() - self._started)
        if left <= 0:
            raise WaitTimeoutError(f"job {self._job_id} has not ended after {self._timeout:g} seconds")
        return min(delay, left)
