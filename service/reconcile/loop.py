"""The reconciler: load, decide, apply, once a tick; and the thread that ticks."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from service.db.models import Attempt, Job
from service.dependencies import Services
from service.errors import UnavailableError
from service.jobs.repository import JobRepository
from service.jobs.states import ACTIVE
from service.observability import ServiceMetrics
from service.reconcile.decide import NOTHING, Facts, Verdict, decide
from service.reconcile.drain import Drain, read_finish
from service.reconcile.lease import LeaderLease
from service.reconcile.submit import Submitter, newest_step
from service.scheduler.base import Known, Observation, Scheduler, SchedulerUnavailableError
from trainyard.contract.reports import FinishRecord
from trainyard.contract.resources import TERMINAL
from trainyard.contract.spec import parse_spec

log = structlog.get_logger("reconcile")


@dataclass(frozen=True)
class Pair:
    """An unfinished job and its current attempt."""

    job: Job
    attempt: Attempt | None


class Reconciler:
    """One tick is one call of `run_once`; nothing is remembered between ticks that the database does not hold."""

    def __init__(self, services: Services, scheduler: Scheduler, submitter: Submitter, lease: LeaderLease):
        self._services = services
        self._scheduler = scheduler
        self._submitter = submitter
        self._lease = lease

    def run_once(self) -> bool:
        """Look at every unfinished job once; True while anything is under way.

        Raises:
            UnavailableError: the database does not answer.
        """
        if not self._lease.hold(self._services.clock()):
            return False
        pairs = self._load()
        observed = self._observe(pairs)
        for pair in pairs:
            try:
                self._step(pair, observed, pairs)
            except SchedulerUnavailableError as error:
                log.warning("scheduler unavailable", job=pair.job.id, error=str(error))
        return any(pair.job.status in ACTIVE or pair.job.status == "queued" for pair in pairs)

    def _load(self) -> list[Pair]:
        with self._services.database.read() as session:
            repository = JobRepository(session, self._services.clock())
            jobs = repository.unfinished()
            attempts = repository.current_attempts(jobs)
        return [Pair(job, attempts.get(job.id)) for job in jobs]

    def _observe(self, pairs: Sequence[Pair]) -> Mapping[str, Observation] | None:
        """One question for all of them; None when there was no answer."""
        known = [
            self._known(pair.job, pair.attempt)
            for pair in pairs
            if pair.job.status in ACTIVE and pair.attempt and pair.attempt.scheduler_id
        ]
        try:
            return self._scheduler.observe(known)
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            return None

    def _known(self, job: Job, attempt: Attempt) -> Known:
        folder = self._services.run(job.id).attempt(attempt.number).root
        return Known(tag=attempt.tag, scheduler_id=str(attempt.scheduler_id), folder=folder)

    def _step(self, pair: Pair, observed: Mapping[str, Observation] | None, pairs: Sequence[Pair]) -> None:
        job, attempt = pair.job, pair.attempt
        if job.status in ("queued", "paused"):
            self._waiting(job)
        elif attempt is None:
            raise AssertionError(f"job {job.id} is {job.status} without an attempt")
        elif attempt.scheduler_id is None:
            self._submitter.resolve(job, attempt)
        elif observed is not None:
            self._underway(job, attempt, _named(observed[attempt.tag], pairs))

    def _waiting(self, job: Job) -> None:
        """A job that the scheduler does not have."""
        if job.desired == "run" and job.status == "queued":
            self._submitter.submit(job.no)
        elif job.desired == "cancelled":
            self._apply(job, None, Verdict("cancelled", "cancelled before it was started", "user_cancelled"))
        elif job.desired == "run":
            self._apply(job, None, Verdict("queued", "to be continued from the last checkpoint"))
        elif job.status == "queued":
            self._apply(job, None, Verdict("paused", "paused"))

    def _underway(self, job: Job, attempt: Attempt, seen: Observation) -> None:
        """A job that the scheduler has, or had."""
        folder = self._services.run(job.id).attempt(attempt.number)
        over = seen.state in ("ended", "absent")
        finish = _finish_of(attempt) or (read_finish(folder) if over else None)
        if over:
            limit = self._services.settings.log_limit
            Drain(self._services.database, attempt.id, folder, self._services.clock(), limit).run()
        verdict = decide(self._facts(job, attempt, seen, finish))
        if verdict.cancel:
            self._scheduler.cancel(self._known(job, attempt))
        if verdict != NOTHING:
            self._apply(job, attempt, verdict, finish)

    def _facts(self, job: Job, attempt: Attempt, seen: Observation, finish: FinishRecord | None) -> Facts:
        # Points drained a moment ago may have brought a checkpoint that the loaded row does not know.
        with self._services.database.read() as session:
            fresh = JobRepository(session, self._services.clock()).get(job.id)
        restart = parse_spec(fresh.spec).restart
        used = fresh.retries_used + (finish.restarts if finish else 0)
        return Facts(
            status=job.status,  # type: ignore[arg-type]
            desired=fresh.desired,  # type: ignore[arg-type]
            claimed=attempt.claimed_at is not None,
            observation=seen,
            finish=finish,
            retries_left=restart.max_retries - used,
            barren=_barren(fresh, attempt),
            on_time_limit=restart.on_time_limit,
        )

    def _apply(self, job: Job, attempt: Attempt | None, verdict: Verdict, finish: FinishRecord | None = None) -> None:
        """Write a verdict, unless the job moved on since it was made."""
        now = self._services.clock()
        with self._services.database.write() as session:
            jobs = JobRepository(session, now)
            fresh = jobs.locked(job.no)
            if fresh.status != job.status or fresh.attempt_id != job.attempt_id:
                return
            if verdict.ended and attempt is not None:
                _end(fresh, jobs.attempt(attempt.id), verdict, finish, now)
            session.flush()
            if verdict.status is not None:
                jobs.move(fresh, verdict.status, verdict.message or "", reason=verdict.reason)
                if fresh.status in TERMINAL:
                    fresh.finished_at = _finished_at(fresh, finish, now)
            elif verdict.message is not None:
                jobs.say(fresh, verdict.message)


def _finished_at(job: Job, finish: FinishRecord | None, now: datetime) -> datetime:
    """When it really ended, which may be while the service was away; a node's clock is believed within reason."""
    if finish is None or job.started_at is None:
        return now
    return min(now, max(job.started_at, finish.time))


def _end(job: Job, attempt: Attempt, verdict: Verdict, finish: FinishRecord | None, now: datetime) -> None:
    """Close an attempt's books."""
    restarts = finish.restarts if finish else 0
    job.barren_continuations = _barren(job, attempt)
    job.retries_used += restarts + (1 if verdict.spends_retry else 0)
    job.failure = verdict.failure.model_dump(mode="json") if verdict.failure else None
    attempt.ended_at = now
    attempt.exit_reason = verdict.exit_reason


def _barren(job: Job, attempt: Attempt) -> int:
    return 0 if newest_step(job) != attempt.checkpoint_step else job.barren_continuations + 1


def _finish_of(attempt: Attempt) -> FinishRecord | None:
    return FinishRecord.model_validate(attempt.finish) if attempt.finish else None


def _named(seen: Observation, pairs: Sequence[Pair]) -> Observation:
    """Jobs by the names that people gave them, where the scheduler knows only tags."""
    message = seen.message
    for pair in pairs:
        if pair.attempt and pair.attempt.tag in seen.behind:
            message = message.replace(pair.attempt.tag, f"{pair.job.name} ({pair.job.id})")
    return replace(seen, message=message)


class ReconcileLoop:
    """Ticks in a thread: soon after a hint, often while something is under way, seldom otherwise."""

    IDLE_SECONDS = 5.0

    def __init__(self, reconciler: Reconciler, metrics: ServiceMetrics, tick_seconds: float):
        self._reconciler = reconciler
        self._metrics = metrics
        self._tick_seconds = tick_seconds
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hint(self) -> None:
        """There is something to do. Never blocks; a lost hint only costs the idle interval."""
        self._wake.set()

    def stop(self) -> None:
        """End after the tick in progress."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        errors = 0
        while not self._stopping:
            self._wake.clear()
            started = time.monotonic()
            busy = True
            try:
                busy = self._reconciler.run_once()
                errors = 0
            except UnavailableError as error:
                errors += 1
                log.warning("tick failed", error=error.message)
            except Exception:
                # The loop must outlive a bug in one decision; it is counted, logged and seen in Prometheus.
                errors += 1
                log.exception("tick failed")
            self._metrics.tick(time.monotonic() - started)
            if errors:
                self._metrics.tick_failed()
            pause = self._tick_seconds if busy else self.IDLE_SECONDS
            self._wake.wait(min(pause * 2 ** min(errors, 8), 60.0))
