"""Commands that may hang: the caller waits briefly, and gets the answer at a later call."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from service.scheduler.base import NoAnswerYetError, SchedulerUnavailableError

T = TypeVar("T")

log = structlog.get_logger("slurm")

_BRIEF_SECONDS = 2.0
"""How long callers wait for a call, all together: the tick serves all jobs, and carries out cancellations."""
_SLOW_SECONDS, _SPARED_SECONDS = 5.0, 60.0
"""A program that takes this long to fail is not called again for this long."""
_AT_ONCE = 8
"""How many calls about single jobs run at the same time."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """The result of a command."""

    value: T
    question: frozenset[str]
    """The ids or names that the question is about."""
    started: float
    """When the command was started, in seconds of `time.monotonic`."""


@dataclass
class _Call(Generic[T]):
    question: frozenset[str]
    started: float
    future: "Future[T]"


class LateAnswers(Generic[T]):
    """Calls of one program; for each purpose, at most one call runs at a time."""

    def __init__(self, program: str) -> None:
        """
        Args:
            program: Its name, for messages.
        """
        self._program = program
        self._calls: dict[str, _Call[T]] = {}
        self._due_at = float("-inf")

    def ask(self, purpose: str, question: frozenset[str], call: Callable[[], T]) -> Answer[T]:
        """Return the answer to a question, or to an earlier question of the same purpose that was not answered before.

        Args:
            purpose: Calls of different purposes do not take each other's answers.
            question: The ids or names that the answer is about.
            call: Makes the call, in another thread.

        Raises:
            NoAnswerYetError: it is still running.
            SchedulerUnavailableError: it failed, or has just been slow to fail.
        """
        if purpose not in self._calls:
            if time.monotonic() < self._due_at:
                raise SchedulerUnavailableError(f"{self._program}: it hangs; it is called once a minute")
            self._calls[purpose] = _begin(question, call)
        running = self._calls[purpose]
        try:
            value = running.future.result(max(0.0, running.started + _BRIEF_SECONDS - time.monotonic()))
        except TimeoutError:
            raise NoAnswerYetError(f"{self._program}: it has not answered yet") from None
        except SchedulerUnavailableError:
            now = time.monotonic()
            self._due_at = now + _SPARED_SECONDS if now - running.started >= _SLOW_SECONDS else now
            raise
        finally:
            if running.future.done():
                del self._calls[purpose]
        return Answer(value, running.question, running.started)


class CallsPerJob:
    """Calls of one program about single jobs. A few run at the same time, and a tick waits briefly for all of them."""

    def __init__(self, program: str, interval: float) -> None:
        """
        Args:
            program: Its name, for messages.
            interval: The least seconds between two successful calls about a job.
        """
        self._program = program
        self._interval = interval
        self._made: dict[str, float] = {}
        """When the last successful call was made, in seconds of `time.monotonic`, by job."""
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._running: dict[str, _Call[None]] = {}
        self._left = _BRIEF_SECONDS

    def start_tick(self) -> None:
        """Allow the whole wait again, and collect the outcomes of calls that nobody has waited for."""
        self._left = _BRIEF_SECONDS
        now = time.monotonic()
        self._made = {job: at for job, at in self._made.items() if now - at < self._interval}
        for job, running in list(self._running.items()):
            if running.future.done():
                try:
                    self._collect(job, running)
                except SchedulerUnavailableError as error:
                    log.warning("scheduler unavailable", error=str(error))
                except Exception:
                    log.exception("a call failed", program=self._program)

    def make(self, job: str, call: Callable[[], None]) -> None:
        """Make a call about a job, unless one is running or was made recently; wait for it while the tick has time.

        Raises:
            NoAnswerYetError: it is still running.
            SchedulerUnavailableError: it failed.
        """
        started = time.monotonic()
        if started - self._made.get(job, float("-inf")) < self._interval:
            return

        def run() -> None:
            with self._slots:
                call()

        if job not in self._running:
            self._running[job] = _begin(frozenset({job}), run)
        running = self._running[job]
        wait([running.future], self._left)
        self._left = max(0.0, self._left - (time.monotonic() - started))
        if not running.future.done():
            raise NoAnswerYetError(f"{self._program}: it has not answered yet")
        self._collect(job, running)

    def _collect(self, job: str, running: _Call[None]) -> None:
        """Take note of a call that has ended, and raise its error."""
        del self._running[job]
        running.future.result()
        self._made[job] = running.started


def _begin(question: frozenset[str], call: Callable[[], T]) -> _Call[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    begun = _Call(question, time.monotonic(), future)
    # A call that hangs must not delay the end of the service.
    threading.Thread(target=run, name="late-answer", daemon=True).start()
    return begun
