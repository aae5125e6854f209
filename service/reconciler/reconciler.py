"""The reconciler: load, decide, apply, once a tick."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from service.api.dependencies import Services
from service.core.errors import LeaseLostError, UnavailableError
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.quota import UserQuotas
from service.jobs.repository import JobRepository
from service.jobs.states import ACTIVE
from service.reconciler.apply import VerdictWriter
from service.reconciler.cluster_poll import Survey
from service.reconciler.decide import CANCEL_WAITS, NOTHING, Verdict, decide
from service.reconciler.node_exclusion import blamed
from service.reconciler.quota import Share, held_back
from service.reconciler.run_dir import read_claimant, read_finish
from service.reconciler.snapshot import FactFinder
from service.reconciler.spool_ingest import Drain
from service.reconciler.start_estimates import Asks
from service.reconciler.submission.submitter import Submitter
from service.reconciler.sweep_concurrency import beyond_sweep
from service.scheduler.base import Known, Observation, Scheduler, SchedulerUnavailableError
from trainyard.contract.wire.reports import FinishRecord

log = structlog.get_logger("reconcile")

_PATIENCE_SECONDS = 30.0
"""What a tick spends on questions that fail, before it leaves the others for the next one."""
_LAST_ANSWERS_SECONDS = 5.0
_NEXT = 50
"""Waiting jobs that a tick looks at: more than can be begun or refused before the next one."""


@dataclass(frozen=True)
class Pair:
    """An unfinished job and its current attempt."""

    job: Job
    attempt: Attempt | None


@dataclass(frozen=True)
class _Tags:
    """What a tick says of the scheduler's names."""

    names: Mapping[str, str]
    """How people call each job, by tag."""
    unanswered: Sequence[str]
    """Of submissions whose outcome nobody knows."""

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "_Tags":
        known = [(pair.job, pair.attempt) for pair in pairs if pair.attempt]
        asked = [a for _, a in known if a.scheduler_id is None and a.last_submit_at is not None and a.ended_at is None]
        return cls({a.tag: f"{job.name} ({job.id})" for job, a in known}, [a.tag for a in asked])


class Reconciler:
    """One tick is one call of `run_once`; nothing is remembered between ticks that the database does not hold."""

    def __init__(self, services: Services, scheduler: Scheduler, submitter: Submitter, lease: LeaderLease):
        self._services = services
        self._scheduler = scheduler
        self._submitter = submitter
        self.lease = lease
        self._survey = Survey(services, scheduler, lease)
        self._asks = Asks(services, scheduler, lease)
        self._patience = _PATIENCE_SECONDS
        self._limits = services.quotas
        self._facts = FactFinder(services, services.clock())
        self._verdicts = VerdictWriter(services, lease)
        self._silent_since: datetime | None = None
        """Since when the scheduler does not answer, as far as this process has seen: for words alone."""
        self.changed = False
        """Whether the last tick wrote anything, or has a question under way."""

    def run_once(self) -> bool:
        """Look at every unfinished job once; True while anything is under way.

        Raises:
            UnavailableError: the database does not answer.
        """
        self.changed = False
        if not self.lease.acquire(self._services.clock()):
            return False
        self._services.failpoint("tick.after-lease")
        before = self.lease.writes
        try:
            return self._tick()
        except LeaseLostError:
            log.warning("another service reconciles now; what this tick had decided is dropped")
            return False
        finally:
            self.changed = self.lease.writes != before or self._submitter.hand_overs.busy

    def renew(self) -> None:
        """Keep the lease during a long tick."""
        self.lease.renew(self._services.clock())

    def close(self) -> None:
        """Record what is still answered within seconds, and let the next one start at once."""
        self._submitter.hand_overs.wait(_LAST_ANSWERS_SECONDS)
        try:
            self._submitter.collect()
        except LeaseLostError:
            return
        self._services.failpoint("close.before-release")
        self.lease.release(self._services.clock())

    def _tick(self) -> bool:
        self._submitter.collect()
        asked = False
        with self._apart():
            self._survey.take()
        with self._apart():
            asked = self._asks.take()
        pairs = self._load()
        self._services.failpoint("tick.after-load")
        observed = self._observe(pairs)
        self._services.failpoint("tick.after-observation")
        tags = _Tags.of(pairs)
        self._patience = _PATIENCE_SECONDS
        held = _held(pairs, self._limits)
        for pair in pairs:
            with structlog.contextvars.bound_contextvars(**_about(pair.job, pair.attempt)), self._apart(pair.job):
                self._step(pair, observed, tags, held.get(pair.job.pk))
        self._submitter.collect()
        return asked or any(pair.job.status in ACTIVE or pair.job.status == "queued" for pair in pairs)

    @contextmanager
    def _apart(self, job: Job | None = None) -> Iterator[None]:
        """What fails for a fault of ours, or for what one job has left on disk, holds up nothing else of the tick."""
        try:
            yield
        except (UnavailableError, LeaseLostError):
            raise
        except Exception as error:
            log.exception("tick failed in part")
            self._services.metrics.tick_failed()
            if job is not None:
                name = type(error).__name__
                self._say(job, f"an error in the service ({name}) holds it up; it is tried again, the log says more")

    def _load(self) -> list[Pair]:
        # Whose turn it is under a limit depends on all that wait; who hands over in the tick takes all at once.
        all_of_them = self._limits.limits_gpus or self._submitter.hand_overs.threads == 0
        waiting = None if all_of_them else _NEXT
        with self._services.database.read() as session:
            found = JobRepository(session, self._services.clock()).list_active(waiting)
            return [Pair(job, attempt) for job, attempt in found]

    def _observe(self, pairs: Sequence[Pair]) -> Mapping[str, Observation] | None:
        """One question for all of them; None when there was no answer."""
        known = [
            self._known(pair.job, pair.attempt)
            for pair in pairs
            if pair.job.status in ACTIVE and pair.attempt and pair.attempt.scheduler_id
        ]
        try:
            observed = self._scheduler.observe(known)
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            self._silent_since = self._silent_since or self._services.clock()
            return None
        self._silent_since = None
        return observed

    def _known(self, job: Job, attempt: Attempt) -> Known:
        folder = self._services.run(job.id).attempt(attempt.number).root
        return Known(tag=attempt.tag, scheduler_id=str(attempt.scheduler_id), folder=folder)

    def _step(
        self, pair: Pair, observed: Mapping[str, Observation] | None, tags: _Tags, held: str | None = None
    ) -> None:
        job, attempt = pair.job, pair.attempt
        if held is not None:
            self._say(job, held)
        elif job.status in ("queued", "paused"):
            # While the scheduler is silent a submission could only end without an answer.
            if observed is not None or job.desired != "run":
                self._waiting(job)
            elif job.status == "queued":
                since = f"{self._silent_since:%Y-%m-%d %H:%M} UTC"
                self._say(job, f"waits for the scheduler, which does not answer since {since}")
        elif attempt is None:
            raise AssertionError(f"job {job.id} is {job.status} without an attempt")
        elif attempt.scheduler_id is None:
            if observed is None and job.desired == "cancelled":
                self._say(job, CANCEL_WAITS)
            self._ask(lambda: self._submitter.resolve(job, attempt, tags.unanswered), job)
        elif observed is not None and attempt.tag in observed:
            self._underway(job, attempt, _named(observed[attempt.tag], tags.names))
        else:
            self._unheard(job, attempt)

    def _ask(self, question: Callable[[], None], job: Job) -> None:
        """A question about one job; those that fail slowly do not hold up all others."""
        if self._patience <= 0:
            return
        started = time.monotonic()
        try:
            question()
        except SchedulerUnavailableError as error:
            self._patience -= time.monotonic() - started
            log.warning("scheduler unavailable", error=str(error))

    def _waiting(self, job: Job) -> None:
        """A job that the scheduler does not have."""
        started = "its next attempt was started" if job.attempts else "it was started"
        if job.desired == "run" and job.status == "queued":
            self._submitter.submit(job.pk)
        elif job.desired == "cancelled":
            words = "cancelled while it was paused" if job.status == "paused" else f"cancelled before {started}"
            self._verdicts.write(job, None, Verdict("cancelled", words, "user_cancelled"))
        elif job.desired == "run":
            self._verdicts.write(job, None, Verdict("queued", "resumed; to be continued from the last checkpoint"))
        elif job.status == "queued":
            self._verdicts.write(job, None, Verdict("paused", f"paused before {started}"))

    def _say(self, job: Job, words: str) -> None:
        if job.status_message != words:
            self._verdicts.write(job, None, Verdict(message=words))

    def _unheard(self, job: Job, attempt: Attempt) -> None:
        """A job that the scheduler has, while it does not answer."""
        verdict = decide(self._facts.of(job, attempt, None, None, over=False))
        if verdict != NOTHING:
            self._verdicts.write(job, attempt, verdict)

    def _underway(self, job: Job, attempt: Attempt, seen: Observation) -> None:
        """A job that the scheduler has, or had."""
        folder = self._services.run(job.id).attempt(attempt.number)
        gone = seen.state in ("ended", "absent")
        finish = _finish_of(attempt) or (read_finish(folder) if gone else None)
        unknown = seen.state == "absent" and finish is None
        heard = unknown and self._facts.hears(attempt)
        if job.status == "lost" and unknown and not heard and job.desired != "cancelled":
            return
        # What the scheduler has forgotten and is still heard still writes.
        over = gone and not heard
        if gone and attempt.scheduler == "slurm" and read_claimant(folder) not in (None, attempt.scheduler_id):
            # What is over is a double that found the attempt taken; the one that has it may still run, and be heard.
            self._submitter.adopt(job, attempt, str(read_claimant(folder)))
            return
        if over:
            limit, count = self._services.settings.log_limit, self._services.metrics.ingested
            self._services.failpoint("tick.before-drain")
            Drain(self._services.database, attempt.id, folder, self._services.clock(), limit, count).run()
            self._services.failpoint("tick.after-drain")
        verdict = decide(self._facts.of(job, attempt, seen, finish, over=over))
        self._services.failpoint("tick.after-verdict")
        if verdict.cancel:
            self._ask(lambda: self._scheduler.cancel(self._known(job, attempt)), job)
            self._services.failpoint("tick.after-cancel")
        if verdict != NOTHING:
            self._verdicts.write(job, attempt, verdict, finish, blamed(finish, seen, attempt.excluded_nodes))
            self._services.failpoint("tick.after-apply")


def _share(pair: Pair) -> Share:
    job = pair.job
    waiting = job.status == "queued" and job.desired == "run"
    # A paused job, and one that is taken back before it was submitted, has nothing at the scheduler.
    gpus = 0 if job.status in ("queued", "paused") and not waiting else job.gpus
    sweep, parallel = job.sweep_id, job.sweep_parallel
    return Share(job.pk, job.id, job.created_by, job.submitter_role, gpus, waiting, sweep, parallel)


def _held(pairs: Sequence[Pair], limits: UserQuotas) -> Mapping[int, str]:
    """What is not submitted yet, and why. A job that waits for its sweep does not stand before its person's others."""
    shares = [_share(pair) for pair in pairs]
    beyond = beyond_sweep(shares)
    return {**held_back([share for share in shares if share.job_pk not in beyond], limits), **beyond}


def _about(job: Job, attempt: Attempt | None) -> dict[str, str | None]:
    """What every line of the log about a job carries."""
    if attempt is None:
        return {"job": job.id}
    return {"job": job.id, "attempt": attempt.id, "scheduler_id": attempt.scheduler_id}


def _finish_of(attempt: Attempt) -> FinishRecord | None:
    return FinishRecord.model_validate(attempt.finish) if attempt.finish else None


def _named(seen: Observation, names: Mapping[str, str]) -> Observation:
    """Jobs by the names that people gave them, where the scheduler knows only tags."""
    message = seen.message
    for tag in seen.behind:
        message = message.replace(tag, names.get(tag, tag))
    return replace(seen, message=message) if message != seen.message else seen
