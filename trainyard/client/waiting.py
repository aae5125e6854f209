"""How long to wait for what: time limits of requests, and the rhythm of waiting for a job. Pure but for the clock."""

from collections.abc import Callable

import httpx

from trainyard.client.errors import TrainyardError, WaitTimeoutError
from trainyard.client.retry import is_passing
from trainyard.contract.wire.jobs import TERMINAL, JobResource

ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 5.0

STREAM_TIMEOUT = httpx.Timeout(45.0, connect=CONNECT_SECONDS)
"""The service sends a sign of life every 15 seconds; three missed mean a dead connection."""

_FIRST_POLL = 0.2
_SLOWEST_POLL = 5.0
_PATIENCE = 3600.0
"""Seconds that an unreachable service is waited for."""


class Wait:
    """One wait for one job to be over."""

    def __init__(self, job_id: str, timeout: float | None, clock: Callable[[], float]) -> None:
        self._job_id = job_id
        self._timeout = timeout
        self._clock = clock
        self._started = self._last_answer = clock()
        self._answered = False
        self._delay = _FIRST_POLL

    def is_over(self, job: JobResource) -> bool:
        self._last_answer, self._answered = self._clock(), True
        return job.status in TERMINAL

    def unanswered(self, error: TrainyardError) -> float:
        """Seconds until the next question; a service that never answered is an error at once."""
        lost = not self._answered or self._clock() - self._last_answer > _PATIENCE
        if lost or not is_passing(error):
            raise error
        return self.next_delay()

    def next_delay(self) -> float:
        """Seconds until the next question: quick at first, never past the time limit.

        Raises:
            WaitTimeoutError: there is no time left.
        """
        delay, self._delay = self._delay, min(self._delay * 1.5, _SLOWEST_POLL)
        if self._timeout is None:
            return delay
        left = self._timeout - (self._clock() - self._started)
        if left <= 0:
            raise WaitTimeoutError(f"job {self._job_id} was not over after {self._timeout:g} seconds")
        return min(delay, left)
