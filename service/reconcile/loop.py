"""The reconciler: load, decide, apply, once a tick."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from service.db.models import Attempt, Job
from service.dependencies import Services
from service.jobs.limits import Limits
from service.jobs.repository import JobRepository
from service.jobs.states import ACTIVE
from service.reconcile.asks import Asks
from service.reconcile.blame import blamed
from service.reconcile.decide import CANCEL_WAITS, NOTHING, Facts, Verdict, decide
from service.reconcile.drain import Drain
from service.reconcile.lease import LeaderLease, LeaseLostError
from service.reconcile.shares import Share, held_back
from service.reconcile.submit import Submitter, newest_step
from service.reconcile.survey import Survey
from service.reconcile.sweeps import beyond_sweep
from service.reconcile.traces import Unclaimed, read_claimant, read_finish, read_unclaimed
from service.scheduler.base import Known, Observation, Scheduler, SchedulerUnavailableError
from trainyard.contract.reports import FinishRecord
from trainyard.contract.resources import TERMINAL
from trainyard.contract.spec import parse_spec

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
        asked = [a for _, a in known if a.scheduler_id is None and a.handed_over_at is not None and a.ended_at is None]
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
        self._limits = services.limits
        self._watching_since = services.clock()
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
        if not self.lease.hold(self._services.clock()):
            return False
        self._services.crash("tick.after-lease")
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
        self.lease.hold(self._services.clock())

    def close(self) -> None:
        """Record what is still answered within seconds, and let the next one start at once."""
        self._submitter.hand_overs.wait(_LAST_ANSWERS_SECONDS)
        try:
            self._submitter.collect()
        except LeaseLostError:
            return
        self._services.crash("close.before-release")
        self.lease.release(self._services.clock())

    def _tick(self) -> bool:
        self._submitter.collect()
        self._survey.take()
        asked = self._asks.take()
        pairs = self._load()
        self._services.crash("tick.after-load")
        observed = self._observe(pairs)
        self._services.crash("tick.after-observation")
        tags = _Tags.of(pairs)
        self._patience = _PATIENCE_SECONDS
        held = _held(pairs, self._limits)
        for pair in pairs:
            with structlog.contextvars.bound_contextvars(**_about(pair.job, pair.attempt)):
                self._step(pair, observed, tags, held.get(pair.job.no))
        self._submitter.collect()
        return asked or any(pair.job.status in ACTIVE or pair.job.status == "queued" for pair in pairs)

    def _load(self) -> list[Pair]:
        # Whose turn it is under a limit depends on all that wait; who hands over in the tick takes all at once.
        all_of_them = self._limits.of_gpus or self._submitter.hand_overs.threads == 0
        waiting = None if all_of_them else _NEXT
        with self._services.database.read() as session:
            found = JobRepository(session, self._services.clock()).unfinished(waiting)
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
        elif observed is not None:
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
        if job.desired == "run" and job.status == "queued":
            self._submitter.submit(job.no)
        elif job.desired == "cancelled":
            words = "cancelled while it was paused" if job.status == "paused" else "cancelled before it was started"
            self._apply(job, None, Verdict("cancelled", words, "user_cancelled"))
        elif job.desired == "run":
            self._apply(job, None, Verdict("queued", "resumed; to be continued from the last checkpoint"))
        elif job.status == "queued":
            self._apply(job, None, Verdict("paused", "paused before it was started"))

    def _say(self, job: Job, words: str) -> None:
        if job.status_message != words:
            self._apply(job, None, Verdict(message=words))

    def _unheard(self, job: Job, attempt: Attempt) -> None:
        """A job that the scheduler has, while it does not answer."""
        verdict = decide(self._facts(job, attempt, None, None, over=False))
        if verdict != NOTHING:
            self._apply(job, attempt, verdict)

    def _underway(self, job: Job, attempt: Attempt, seen: Observation) -> None:
        """A job that the scheduler has, or had."""
        folder = self._services.run(job.id).attempt(attempt.number)
        over = seen.state in ("ended", "absent")
        finish = _finish_of(attempt) or (read_finish(folder) if over else None)
        if job.status == "lost" and seen.state == "absent" and finish is None and job.desired != "cancelled":
            return
        if over and attempt.scheduler == "slurm" and read_claimant(folder) not in (None, attempt.scheduler_id):
            # What is over is a double that found the attempt taken; the one that has it may still run.
            self._submitter.adopt(job, attempt, str(read_claimant(folder)))
            return
        if over:
            limit, count = self._services.settings.log_limit, self._services.metrics.ingested
            self._services.crash("tick.before-drain")
            Drain(self._services.database, attempt.id, folder, self._services.clock(), limit, count).run()
            self._services.crash("tick.after-drain")
        verdict = decide(self._facts(job, attempt, seen, finish, over=over))
        self._services.crash("tick.after-verdict")
        if verdict.cancel:
            self._ask(lambda: self._scheduler.cancel(self._known(job, attempt)), job)
            self._services.crash("tick.after-cancel")
        if verdict != NOTHING and not _known_already(job, attempt, verdict):
            self._apply(job, attempt, verdict, finish, blamed(finish, seen))
            self._services.crash("tick.after-apply")

    def _facts(
        self, job: Job, attempt: Attempt, seen: Observation | None, finish: FinishRecord | None, *, over: bool
    ) -> Facts:
        retries_left, barren, on_time_limit = 0, 0, "continue"
        former: tuple[str, ...] = ()
        folder = self._services.run(job.id).attempt(attempt.number)
        # Of thousands that wait no file is looked at.
        started = over or (seen is not None and seen.state == "running")
        if over:
            # Points drained a moment ago may have brought a checkpoint that the loaded row does not know.
            with self._services.database.read() as session:
                jobs = JobRepository(session, self._services.clock())
                fresh = jobs.get(job.id)
                barren = _barren(fresh, attempt)
                former = _former(jobs.attempts(fresh), attempt, barren - 1)
            restart = parse_spec(fresh.spec).restart
            used = fresh.retries_used + (finish.restarts if finish else 0)
            retries_left = restart.max_retries - used
            on_time_limit = restart.on_time_limit
        return Facts(
            status=job.status,  # type: ignore[arg-type]
            desired=job.desired,  # type: ignore[arg-type]
            claimed=attempt.claimed_at is not None,
            unclaimed=read_unclaimed(folder, over=over) if started and not attempt.claimed_at else Unclaimed(),
            observation=seen,
            finish=finish,
            retries_left=retries_left,
            barren=barren,
            on_time_limit=on_time_limit,  # type: ignore[arg-type]
            said=job.status_message,
            former=former,
            claimed_seconds=_since(attempt.claimed_at, self._services.clock()),
            silent_seconds=_silence(attempt, self._services.clock()),
            pause_seconds=self._pause_seconds(job),
            pause_patience=self._services.settings.pause_patience_seconds,
        )

    def _pause_seconds(self, job: Job) -> float:
        """Since the worker could first hear of the pause: not while this service was away."""
        now = self._services.clock()
        asked = max(job.pause_asked_at or now, self._watching_since)
        return max(0.0, (now - asked).total_seconds())

    def _apply(
        self,
        job: Job,
        attempt: Attempt | None,
        verdict: Verdict,
        finish: FinishRecord | None = None,
        blamed_node: str | None = None,
    ) -> None:
        """Write a verdict, unless the job moved on since it was made."""
        now = self._services.clock()
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            fresh = jobs.locked(job.no)
            if fresh.status != job.status or fresh.attempt_id != job.attempt_id:
                return
            if verdict.ended and attempt is not None:
                row = jobs.attempt(attempt.id)
                _end(fresh, row, verdict, finish, now)
                row.blamed_node = blamed_node
            elif attempt is not None:
                jobs.attempt(attempt.id).estimated_start = verdict.estimated_start
            session.flush()
            if verdict.status is not None:
                log.info("moved", source=fresh.status, target=verdict.status, reason=verdict.reason)
                jobs.move(fresh, verdict.status, verdict.message or "", reason=verdict.reason)
                if fresh.status in TERMINAL:
                    fresh.finished_at = _finished_at(fresh, finish, now)
            elif verdict.message is not None:
                jobs.say(fresh, verdict.message)
            self._services.crash("apply.before-commit")


def _share(pair: Pair) -> Share:
    job = pair.job
    waiting = job.status == "queued" and job.desired == "run"
    # A paused job, and one that is taken back before it was submitted, has nothing at the scheduler.
    gpus = 0 if job.status in ("queued", "paused") and not waiting else job.gpus
    sweep, parallel = job.sweep_id, job.sweep_parallel
    return Share(job.no, job.id, job.created_by, job.created_as, gpus, waiting, sweep, parallel)


def _held(pairs: Sequence[Pair], limits: Limits) -> Mapping[int, str]:
    """What is not submitted yet, and why. A job that waits for its sweep does not stand before its person's others."""
    shares = [_share(pair) for pair in pairs]
    beyond = beyond_sweep(shares)
    return {**held_back([share for share in shares if share.job_no not in beyond], limits), **beyond}


def _about(job: Job, attempt: Attempt | None) -> dict[str, str | None]:
    """What every line of the log about a job carries."""
    if attempt is None:
        return {"job": job.id}
    return {"job": job.id, "attempt": attempt.id, "scheduler_id": attempt.scheduler_id}


def _finished_at(job: Job, finish: FinishRecord | None, now: datetime) -> datetime:
    """When it really ended, which may be while the service was away; a node's clock is believed within reason."""
    if finish is None or job.started_at is None:
        return now
    return min(now, max(job.started_at, finish.time))


def _end(job: Job, attempt: Attempt, verdict: Verdict, finish: FinishRecord | None, now: datetime) -> None:
    """Close an attempt's books."""
    restarts = finish.restarts if finish else 0
    # A pause is no failure to get on.
    paused = verdict.status == "paused"
    job.barren_continuations = min(job.barren_continuations, _barren(job, attempt)) if paused else _barren(job, attempt)
    job.retries_used += restarts + (1 if verdict.spends_retry else 0)
    job.failure = verdict.failure.model_dump(mode="json") if verdict.failure else None
    attempt.ended_at = now
    attempt.exit_reason = verdict.exit_reason


def _barren(job: Job, attempt: Attempt) -> int:
    return 0 if newest_step(job) != attempt.checkpoint_step else job.barren_continuations + 1


def _former(attempts: Sequence[Attempt], current: Attempt, count: int) -> tuple[str, ...]:
    """How the last attempts before the current one ended."""
    before = [one.exit_reason or "node_failure" for one in attempts if one.number < current.number]
    return tuple(before[len(before) - count :]) if count > 0 else ()


def _finish_of(attempt: Attempt) -> FinishRecord | None:
    return FinishRecord.model_validate(attempt.finish) if attempt.finish else None


def _since(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else (now - moment).total_seconds()


def _silence(attempt: Attempt, now: datetime) -> float:
    signs = [at for at in (attempt.submitted_at, attempt.claimed_at, attempt.heartbeat_at) if at is not None]
    return (now - max(signs, default=now)).total_seconds()


def _known_already(job: Job, attempt: Attempt, verdict: Verdict) -> bool:
    """Whether it only says what the rows say."""
    if verdict.status is not None or verdict.ended or verdict.estimated_start != attempt.estimated_start:
        return False
    return verdict.message in (None, job.status_message)


def _named(seen: Observation, names: Mapping[str, str]) -> Observation:
    """Jobs by the names that people gave them, where the scheduler knows only tags."""
    message = seen.message
    for tag in seen.behind:
        message = message.replace(tag, names.get(tag, tag))
    return replace(seen, message=message) if message != seen.message else seen
