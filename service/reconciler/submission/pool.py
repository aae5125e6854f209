"""A pool of threads that call the scheduler while ticks go on. Each thread submits one attempt."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from service.scheduler.base import Ambiguous, SubmitOutcome

log = structlog.get_logger("submit")


@dataclass(frozen=True)
class NotSubmitted:
    """The scheduler was not called, so nothing can have been queued."""

    message: str


@dataclass(frozen=True)
class Superseded:
    """Another service has taken over the attempt; there is nothing to record."""


Outcome = SubmitOutcome | NotSubmitted | Superseded


@dataclass(frozen=True)
class SubmitResult:
    """The outcome of one submission."""

    job_pk: int
    attempt_id: str
    outcome: Outcome


def _ignore() -> None:
    """Do nothing."""


@dataclass
class SubmitPool:
    """The submissions in flight. The tick collects their results and stores them in the database.

    The threads are daemons, so they do not delay the end of the service. The scheduler's command then continues in a
    child process, and the service finds its outcome after the next start.
    """

    threads: int = 0
    """Maximum number of threads; 0: each submission runs in the caller's thread."""
    on_result: Callable[[], None] = field(default=_ignore)
    """Called when a result can be collected."""
    _in_flight: dict[str, threading.Thread | None] = field(default_factory=dict)
    _uids: dict[str, int] = field(default_factory=dict)
    """By attempt id: the Unix account as which an attempt in flight is submitted, unless it is the service's."""
    _results: list[SubmitResult] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def has_room(self, uid: int | None = None) -> bool:
        """Return whether another submission can begin.

        Args:
            uid: The Unix account that makes the submission, unless it is the service's. Each account gets at most half
                of the threads, because processes of the account make its submissions, and can delay them.
        """
        if self.threads == 0:
            return True
        own = sum(each == uid for each in self._uids.values())
        return len(self._in_flight) < self.threads and own < max(1, self.threads // 2)

    @property
    def count(self) -> int:
        """How many submissions are in flight."""
        return len(self._in_flight)

    @property
    def busy(self) -> bool:
        return bool(self._in_flight)

    def is_in_flight(self, attempt_id: str) -> bool:
        """Return whether the submission of the attempt has begun, and its result has not been collected."""
        return attempt_id in self._in_flight

    def begin(self, job_pk: int, attempt_id: str, call: Callable[[], Outcome], uid: int | None = None) -> None:
        """Begin a submission. The caller must have checked `has_room`."""
        if self.threads == 0:
            self._results.append(SubmitResult(job_pk, attempt_id, call()))
            return
        thread = threading.Thread(
            target=self._run, args=(job_pk, attempt_id, call), name=f"submit-{attempt_id}", daemon=True
        )
        with self._lock:
            self._in_flight[attempt_id] = thread
            if uid is not None:
                self._uids[attempt_id] = uid
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._results.append(SubmitResult(job_pk, attempt_id, NotSubmitted(str(error))))

    def collect(self) -> Iterator[SubmitResult]:
        """Yield the available results. A result is removed only when the caller requests the next result. If the caller
        fails to store a result, the next call yields it again."""
        while self._results:
            result = self._results[0]
            yield result
            with self._lock:
                self._results.remove(result)
                self._in_flight.pop(result.attempt_id, None)
                self._uids.pop(result.attempt_id, None)

    def wait(self, seconds: float) -> None:
        """Wait until all submissions in flight have a result, for at most this many seconds."""
        deadline = time.monotonic() + seconds
        for thread in list(self._in_flight.values()):
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, job_pk: int, attempt_id: str, call: Callable[[], Outcome]) -> None:
        try:
            outcome = call()
        except Exception as error:
            # The error may have occurred after the scheduler was called.
            log.exception("submission failed", attempt=attempt_id)
            outcome = Ambiguous(str(error))
        with self._lock:
            self._results.append(SubmitResult(job_pk, attempt_id, outcome))
        self.on_result()
