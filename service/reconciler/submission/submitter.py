"""Submission of an attempt to the scheduler so that it runs once, whatever is lost on the way.

First the new attempt is committed; then the deadline of the scheduler's call; then the scheduler is called, beside the
tick; then the answer is recorded. An attempt without an answer is submitted again only after repeated lookups have
shown that the scheduler does not have it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from service.core.clock import Clock, is_due
from service.core.errors import LeaseLostError, UnavailableError
from service.core.failpoints import Failpoint, no_failpoint
from service.core.observability import ServiceMetrics
from service.core.settings import Settings
from service.core.untrusted_files import files_of_job
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.conditions import Condition, has_message, minute_text
from service.jobs.repository import JobRepository
from service.reconciler.repository import withdrawn_attempts
from service.reconciler.run_dir import read_claimant
from service.reconciler.submission.attempts import NodeChoice, new_attempt
from service.reconciler.submission.backoff import SubmitBackoff
from service.reconciler.submission.checks import CheckedJob, SubmissionChecks
from service.reconciler.submission.outcomes import OutcomeRecorder, refusal_group, settle
from service.reconciler.submission.pool import NotSubmitted, Outcome, SubmitPool, SubmitResult, Superseded
from service.reconciler.submission.prepare import Preparation
from service.reconciler.submission.user_time import UserTimeBudget
from service.run_files.files import RunFiles
from service.scheduler.backends import BACKENDS, AbsencePolicy
from service.scheduler.base import Accepted, Postponed, Rejected, Scheduler, SchedulerUnavailableError, SubmittedJob
from service.specs.acceptance import AcceptedSpec, SpecAcceptance
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.training_spec import dump_spec
from trainyard.contract.wire.reports import Failure

log = structlog.get_logger("submit")

_SLOW_SUBMISSION = timedelta(seconds=60)
_CANCEL_WAIT = timedelta(seconds=10)
"""How long a cancellation waits for the answer of a submission."""
_WITHDRAWN_AGE = timedelta(days=1)
"""How long the queue is searched at most for an attempt that ended without an answer."""


@dataclass
class Submitter:
    """Submits queued jobs and resolves submissions without an answer."""

    database: Database
    settings: Settings
    clock: Clock
    acceptance: SpecAcceptance
    scheduler: Scheduler
    lease: LeaderLease
    run_files: RunFiles
    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    pool: SubmitPool = field(default_factory=SubmitPool)
    turns: UserTimeBudget = field(default_factory=UserTimeBudget)
    search_path: Sequence[Path] = ()
    """Where the job's Python finds our packages if they are not installed."""
    failpoint: Failpoint = no_failpoint

    may_have_withdrawn: bool = True
    """Whether attempts may have ended without an answer of the scheduler, which may have received them."""
    paused: bool = False
    """Whether nothing may be submitted now; results of calls in flight are recorded, and searches continue."""

    def __post_init__(self) -> None:
        self._backoff = SubmitBackoff()
        self._last_lookup: dict[str, datetime] = {}
        """Last lookup by attempt id. Empty after a restart, so that lookups begin at once."""
        self._recorder = OutcomeRecorder(self.lease, self.clock, self.failpoint)
        self._checks = SubmissionChecks(self.database, self.settings, self.clock, self.acceptance, self.run_files)
        self._preparation = Preparation(
            self.database,
            self.settings,
            self.clock,
            self.acceptance,
            self.lease,
            BACKENDS[self.scheduler.name],
            self.run_files,
            search_path=self.search_path,
            failpoint=self.failpoint,
        )

    @property
    def _policy(self) -> AbsencePolicy:
        return BACKENDS[self.scheduler.name].absence_policy(self.settings)

    def _may_begin(self, uid: int | None = None) -> bool:
        return self.pool.has_room(uid) and not self.paused

    def submit(self, job_pk: int, user: str) -> None:
        """Begin the next attempt of a queued job, if the pool has room and its user has time left in this tick."""
        if not self._may_begin() or self.turns.is_used_up(user):
            return
        with self.turns.measure(user):
            checked = self._checks.check(job_pk)
        closed = self._backoff.is_closed(refusal_group(checked.job))
        waiting = Condition("refusals") if closed else checked.waiting
        if waiting is not None and has_message(checked.job, waiting.message, waiting):
            return
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            job = jobs.get_for_update(job_pk)
            if job.status != "queued" or job.desired != "run" or not self._may_begin(job.unix_uid):
                return
            if job.spec["resources"] != checked.job.spec["resources"]:
                return
            if waiting is not None:
                jobs.set_condition(job, waiting)
                return
            if checked.resolved:
                job.spec = dump_spec(checked.accepted.spec)
            if checked.problems:
                _reject(jobs, job, checked)
                self.metrics.submission("refused")
                return
            now, spec, scheduler = self.clock(), checked.accepted.spec, self.scheduler.name
            choice = NodeChoice.load(session, spec, scheduler, now)
            instance = self.settings.instance
            attempt = new_attempt(jobs, job, spec, instance=instance, scheduler=scheduler, now=now, choice=choice)
            session.add(attempt)
            jobs.transition(job, "submitting", f"Submitting to the scheduler ({self.scheduler.name}).")
            self.failpoint("submit.before-intent")
        self.failpoint("submit.after-intent")
        self._begin(job, attempt, checked.accepted)

    def resolve(self, job: Job, attempt: Attempt, unconfirmed: Sequence[str] = ()) -> None:
        """Find the outcome of a submission without an answer.

        Args:
            unconfirmed: The tags of all such submissions.

        Raises:
            SchedulerUnavailableError: The lookup failed.
        """
        if job.desired == "cancelled" and self._may_withdraw(attempt):
            with self.lease.write() as session:
                self._recorder.withdraw(JobRepository(session, self.clock()), job, attempt, is_certain=False)
            self.may_have_withdrawn = True
            return
        if self.pool.is_in_flight(attempt.id):
            if job.desired == "run" and job.condition != "slow_submit":
                self._report_slow(attempt)
            return
        if attempt.last_submit_at is None:
            self._resubmit_unsent(job, attempt)
            return
        folder = self._folder(job, attempt)
        if (answer := self.scheduler.recorded_answer(folder.root, attempt.token_hash, job.unix_uid)) is not None:
            self._record(SubmitResult(job.pk, attempt.id, answer))
            self.metrics.adoption("answer")
            return
        now, policy = self.clock(), self._policy
        if not is_due(self._last_lookup.get(attempt.id), now, policy.interval):
            return
        scheduler_ids = self.scheduler.find(attempt.tag, folder.root, unconfirmed, job.unix_uid)
        self._last_lookup[attempt.id] = now
        self.failpoint("resolve.after-look")
        if scheduler_ids:
            note = "found in the scheduler's queue by its tag"
            current = self._recorder.record(job.pk, attempt.id, Accepted(scheduler_ids[0]), note)
            self._last_lookup.pop(attempt.id, None)
            self.metrics.adoption("name")
            self.failpoint("resolve.after-adoption")
            self._cancel_duplicates(job, attempt.tag, folder, current, scheduler_ids)
        elif self._confirmed_absent(job, attempt, policy, now):
            self._begin(job, attempt)

    def _may_withdraw(self, attempt: Attempt) -> bool:
        """Return whether the attempt of a cancelled job ends without an answer. Its worker could not claim it."""
        if attempt.last_submit_at is None:
            return False
        called = attempt.last_submit_at - self._policy.call_timeout
        return not self.pool.is_in_flight(attempt.id) or not timedelta(0) <= self.clock() - called < _CANCEL_WAIT

    def search_withdrawn(self) -> None:
        """Remove attempts from the scheduler's queue that ended before it answered their submission.

        Raises:
            SchedulerUnavailableError: A lookup failed.
        """
        if not self.may_have_withdrawn:
            return
        now, policy = self.clock(), self._policy
        with self.database.read() as session:
            withdrawn = withdrawn_attempts(session, now - _WITHDRAWN_AGE)
        tags = [attempt.tag for _, attempt in withdrawn]
        for job, attempt in withdrawn:
            last = self._last_lookup.get(attempt.id)
            if self.pool.is_in_flight(attempt.id) or not is_due(last, now, policy.interval):
                continue
            self._last_lookup[attempt.id] = now
            folder = self._folder(job, attempt)
            scheduler_ids = self.scheduler.find(attempt.tag, folder.root, tags, job.unix_uid)
            # This includes the entry whose worker has claimed the attempt in its folder: the job is over.
            for scheduler_id in scheduler_ids:
                self.scheduler.cancel(SubmittedJob(attempt.tag, scheduler_id, folder.root, job.unix_uid))
            if self._recorder.count_search(attempt.id, scheduler_ids, policy):
                self._last_lookup.pop(attempt.id, None)
        self.may_have_withdrawn = bool(withdrawn)

    def adopt(self, job: Job, attempt: Attempt, scheduler_id: str) -> None:
        """Follow the scheduler job that has claimed the attempt, instead of a duplicate."""
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            row, fresh = jobs.get_for_update(job.pk), jobs.get_attempt(attempt.id)
            fresh.scheduler_id = scheduler_id
            jobs.add_event(row, "submitted", f"Scheduler job: {scheduler_id}")
        self.metrics.adoption("claim")
        log.info("adopted", scheduler_id=scheduler_id)

    def collect(self) -> None:
        """Record the results of the submissions that were in flight."""
        for result in self.pool.collect():
            self.failpoint("collect.before-record")
            try:
                self._record(result)
            except (UnavailableError, LeaseLostError):
                raise
            except Exception:
                # It would fail again. Without an answer, the attempt is looked up.
                log.exception("a submission result could not be recorded", attempt=result.attempt_id)
            self.metrics.submission(_outcome_name(result.outcome))
            self.failpoint("collect.after-record")
        self.metrics.submissions_in_flight(self.pool.count)

    def _record(self, result: SubmitResult) -> None:
        outcome, attempt_id, group = result.outcome, result.attempt_id, ""
        if isinstance(outcome, Rejected | Postponed):
            with self.database.read() as session:
                jobs = JobRepository(session, self.clock())
                job, attempt = jobs.load(result.job_pk), jobs.get_attempt(attempt_id)
                outcome = settle(outcome, job, attempt, jobs.list_attempts(job))
            group = refusal_group(job)
        if isinstance(outcome, Superseded):
            log.warning("another service has taken over the attempt", attempt=attempt_id)
        elif isinstance(outcome, NotSubmitted | Postponed):
            if isinstance(outcome, Postponed):
                self._backoff.defer(attempt_id, group, self.clock())
            self._recorder.not_submitted(result.job_pk, attempt_id, outcome.message)
        else:
            if isinstance(outcome, Accepted):
                self._backoff.reopen(attempt_id, self.clock())
            self._backoff.clear(attempt_id)
            if isinstance(outcome, Accepted | Rejected):
                self._last_lookup.pop(attempt_id, None)
            current = self._recorder.record(result.job_pk, attempt_id, outcome, min_wait=self._policy.min_wait)
            if isinstance(outcome, Accepted) and current != outcome.scheduler_id:
                self._cancel_late_duplicate(result, outcome.scheduler_id, current)

    def _report_slow(self, attempt: Attempt) -> None:
        now, deadline = self.clock(), attempt.last_submit_at
        if deadline is None or now - (deadline - self._policy.call_timeout) < _SLOW_SUBMISSION:
            return
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            row = jobs.get_for_update(attempt.job_pk)
            if row.status == "submitting" and row.desired == "run" and row.attempt_id == attempt.id:
                jobs.set_condition(row, Condition("slow_submit"))

    def _cancel_late_duplicate(self, result: SubmitResult, duplicate: str, current: str | None) -> None:
        with self.database.read() as session:
            jobs = JobRepository(session, self.clock())
            job, attempt = jobs.load(result.job_pk), jobs.get_attempt(result.attempt_id)
        try:
            self._cancel_duplicates(job, attempt.tag, self._folder(job, attempt), current, [duplicate])
        except SchedulerUnavailableError as error:
            log.warning("a duplicate stays in the queue until its claim fails", attempt=attempt.id, error=str(error))

    def _cancel_duplicates(
        self, job: Job, tag: str, folder: AttemptLayout, current: str | None, scheduler_ids: Sequence[str]
    ) -> None:
        """Cancel the scheduler jobs that do not run the attempt. The claim keeps duplicates from running; the claimant
        is known to the service or, while its report has not arrived, only from the folder."""
        claimant = read_claimant(files_of_job(self.settings, job.unix_uid), folder)
        for scheduler_id in scheduler_ids:
            if scheduler_id not in (current, claimant):
                self.scheduler.cancel(SubmittedJob(tag, scheduler_id, folder.root, job.unix_uid))
                self.failpoint("resolve.after-double")

    def _resubmit_unsent(self, job: Job, attempt: Attempt) -> None:
        """Submit an attempt for which the scheduler was never called, or withdraw it."""
        if job.desired != "run":
            self._backoff.clear(attempt.id)
            with self.lease.write() as session:
                self._recorder.withdraw(JobRepository(session, self.clock()), job, attempt)
        elif self._may_begin(job.unix_uid) and self._backoff.may_begin(attempt.id, self.clock()):
            self._begin(job, attempt)

    def _confirmed_absent(self, job: Job, attempt: Attempt, policy: AbsencePolicy, now: datetime) -> bool:
        """Count another lookup that found nothing. Return whether the attempt is to be submitted again."""
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            fresh = jobs.get_attempt(attempt.id)
            fresh.absence_checks += 1
            submitted = fresh.last_submit_at or fresh.created_at
            if submitted > now + policy.call_timeout:
                # The clock was ahead when the deadline was written.
                fresh.last_submit_at = now + policy.call_timeout
                return False
            self._describe_search(jobs, job, submitted + policy.min_wait)
            self.failpoint("resolve.before-count")
            absent = fresh.absence_checks >= policy.min_lookups and now - submitted >= policy.min_wait
            if absent and jobs.get_for_update(job.pk).desired != "run":
                self._recorder.withdraw(jobs, job, attempt)
                return False
        self.failpoint("resolve.after-count")
        return absent and self._may_begin(job.unix_uid)

    def _describe_search(self, jobs: JobRepository, job: Job, until: datetime) -> None:
        """State until when the scheduler is searched for a submission without an answer."""
        row = jobs.get_for_update(job.pk)
        data = {"cause": "the service ended before the answer", "until": minute_text(until)}
        if row.condition == "unconfirmed":
            data |= {"cause": (row.condition_data or {}).get("cause", "")}
        if row.status == "submitting" and row.desired == "run":
            jobs.set_condition(row, Condition("unconfirmed", data))

    def _begin(self, job: Job, attempt: Attempt, accepted: AcceptedSpec | None = None) -> None:
        job_id, attempt_id, expected = job.id, attempt.id, attempt.last_submit_at
        call_timeout = self._policy.call_timeout

        def submit() -> Outcome:
            plan = self._preparation.prepare(job_id, attempt_id, accepted, expected, call_timeout)
            if isinstance(plan, Rejected | NotSubmitted | Superseded):
                return plan
            outcome = self.scheduler.submit(plan)
            self.failpoint("submit.after-answer")
            return outcome

        self.pool.begin(job.pk, attempt_id, submit, job.unix_uid)

    def _folder(self, job: Job, attempt: Attempt) -> AttemptLayout:
        return RunLayout(self.settings.runs / job.id).attempt(attempt.folder_name)


def _reject(jobs: JobRepository, job: Job, checked: CheckedJob) -> None:
    message = "; ".join(map(str, checked.problems))
    failure = Failure(type="SpecError", message=message, hint=checked.hint, final=True)
    job.failure = failure.model_dump(mode="json")
    jobs.finish(job, "rejected", message)


def _outcome_name(outcome: Outcome) -> str:
    names = {
        NotSubmitted: "not_submitted",
        Superseded: "superseded",
        Accepted: "accepted",
        Rejected: "rejected",
        Postponed: "postponed",
    }
    return names.get(type(outcome), "ambiguous")
