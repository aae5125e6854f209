"""Asking the scheduler beside the tick: a few threads, each of which hands one attempt over and keeps the answer."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from service.scheduler.base import Ambiguous, SubmitOutcome

log = structlog.get_logger("submit")


@dataclass(frozen=True)
class NotAsked:
    """The scheduler was not asked: nothing can have been queued."""

    message: str


@dataclass(frozen=True)
class Superseded:
    """Another service has taken the attempt up meanwhile; there is nothing to record."""


@dataclass(frozen=True)
class Answer:
    """What became of one hand-over."""

    job_pk: int
    attempt_id: str
    outcome: SubmitOutcome | NotAsked | Superseded


def _ignore() -> None:
    """Nobody waits for an answer."""


@dataclass
class HandOvers:
    """Those under way. The threads write nothing: the tick collects their answers, under its lease.

    A thread that outlives the process's interest is a daemon: what it asked goes on in a child of its own, and the next
    start finds what came of it.
    """

    threads: int = 0
    """At most so many at once; 0: each is done at once, in the caller's thread."""
    done: Callable[[], None] = field(default=_ignore)
    """Called when an answer is there to be collected."""
    _under_way: dict[str, threading.Thread | None] = field(default_factory=dict)
    _answers: list[Answer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def room(self) -> bool:
        """Whether one more can begin."""
        return self.threads == 0 or len(self._under_way) < self.threads

    @property
    def count(self) -> int:
        """How many are under way."""
        return len(self._under_way)

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def under_way(self, attempt_id: str) -> bool:
        """From its beginning until its answer is collected."""
        return attempt_id in self._under_way

    def begin(self, job_pk: int, attempt_id: str, work: Callable[[], SubmitOutcome | NotAsked | Superseded]) -> None:
        """Start one; the caller has made sure that there is room."""
        if self.threads == 0:
            self._answers.append(Answer(job_pk, attempt_id, work()))
            return
        thread = threading.Thread(
            target=self._run, args=(job_pk, attempt_id, work), name=f"submit-{attempt_id}", daemon=True
        )
        with self._lock:
            self._under_way[attempt_id] = thread
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._answers.append(Answer(job_pk, attempt_id, NotAsked(str(error))))

    def collect(self) -> Iterator[Answer]:
        """The answers so far; each is kept until the next one is wanted, in case it could not be recorded."""
        while self._answers:
            answer = self._answers[0]
            yield answer
            with self._lock:
                self._answers.remove(answer)
                self._under_way.pop(answer.attempt_id, None)

    def wait(self, seconds: float) -> None:
        """Until all have an answer, at most so long."""
        deadline = time.monotonic() + seconds
        for thread in list(self._under_way.values()):
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, job_pk: int, attempt_id: str, work: Callable[[], SubmitOutcome | NotAsked | Superseded]) -> None:
        try:
            outcome = work()
        except Exception as error:
            # Whatever it was, it may have come after the scheduler was asked.
            log.exception("hand-over failed", attempt=attempt_id)
            outcome = Ambiguous(str(error))
        with self._lock:
            self._answers.append(Answer(job_pk, attempt_id, outcome))
        self.done()
