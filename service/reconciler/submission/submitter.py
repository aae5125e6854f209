"""Handing an attempt to the scheduler so that it runs once, whatever is lost on the way.

The intention is committed first; then that the scheduler is about to be asked; then it is asked, beside the tick; then
the answer is recorded. An attempt without an answer is never submitted again before look-ups have shown that the
scheduler does not have it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

import structlog

from service.api.dependencies import AppState
from service.core.errors import LeaseLostError, UnavailableError
from service.core.ids import new_attempt_id, scheduler_tag
from service.core.settings import Settings
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.reconciler.node_exclusion import next_excluded
from service.reconciler.run_dir import read_claimant
from service.reconciler.submission.backoff import Postponements
from service.reconciler.submission.pool import Answer, HandOvers, NotAsked, Superseded
from service.reconciler.submission.prepare import Preparation
from service.scheduler.base import (
    SUBMITTER_MARGIN_SECONDS,
    Accepted,
    Ambiguous,
    Postponed,
    Rejected,
    Scheduler,
    SchedulerUnavailableError,
    SubmitOutcome,
    SubmittedJob,
)
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.reports import Failure

log = structlog.get_logger("submit")

_LONG = timedelta(seconds=60)
_TAKES_LONG = "being handed to the scheduler for more than a minute: sbatch is slow, or the disk of TRAINYARD_RUNS_DIR"


@dataclass(frozen=True)
class LookupPolicy:
    """How much looking makes sure that the scheduler does not have an attempt."""

    times: int
    after: timedelta
    """Since it was last asked."""
    apart: timedelta = timedelta(0)
    """Between two look-ups: each costs the scheduler an answer, and two in one breath are as good as one."""
    asking: timedelta = timedelta(0)
    """The longest that a question may be under way, in a child that outlives a killed service."""


def lookup_policy(scheduler: Literal["local", "slurm"], settings: Settings) -> LookupPolicy:
    """Of a scheduler."""
    if scheduler == "local":
        # The queue is this service's own and is read under its lock: one clean look tells.
        return LookupPolicy(times=1, after=timedelta(0))
    # sbatch may still be retrying by itself for two minutes, and slurmctld may list a job late.
    doubt = timedelta(seconds=settings.slurm_confirm_absence_seconds)
    asking = timedelta(seconds=settings.slurm_submit_timeout_seconds + SUBMITTER_MARGIN_SECONDS)
    return LookupPolicy(times=3, after=doubt, apart=doubt / 3, asking=asking)


@dataclass(frozen=True)
class Submitter:
    """Submits queued jobs and resolves submissions without an answer."""

    services: AppState
    scheduler: Scheduler
    lease: LeaderLease
    preparation: Preparation
    hand_overs: HandOvers = field(default_factory=HandOvers)
    looked: dict[str, datetime] = field(default_factory=dict)
    """When each unanswered attempt was last looked for. Forgotten at a restart, which looks at once."""
    postponed: Postponements = field(default_factory=Postponements)

    @property
    def _policy(self) -> LookupPolicy:
        return lookup_policy(self.scheduler.name, self.services.settings)

    def submit(self, job_pk: int) -> None:
        """Begin the next attempt of a queued job, where there is room for one more question."""
        if not self.hand_overs.room:
            return
        now, settled = self.services.clock(), self.preparation.settle(job_pk)
        outsized = self.preparation.outsized(job_pk, settled.spec)
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            job = jobs.get_for_update(job_pk)
            if job.status != "queued" or job.desired != "run":
                return
            if settled.waiting:
                jobs.set_status_message(job, f"not handed over yet: {settled.waiting}")
                return
            job.spec = settled.spec or job.spec
            if problems := [*settled.problems, *self.preparation.refusals(session, job), *outsized]:
                _refuse(jobs, job, problems, _TOO_LARGE if outsized else _REFUSED)
                self.services.metrics.submission("refused")
                return
            attempt = self._new_attempt(jobs, job, now)
            session.add(attempt)
            jobs.transition(job, "submitting", f"being handed to the scheduler ({self.scheduler.name})")
            self.services.failpoint("submit.before-intent")
        self.services.failpoint("submit.after-intent")
        self._begin(job, attempt)

    def resolve(self, job: Job, attempt: Attempt, unanswered: Sequence[str] = ()) -> None:
        """Find out what became of a submission without an answer.

        Args:
            unanswered: the tags of all such submissions.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """
        if self.hand_overs.under_way(attempt.id):
            if job.desired == "run" and job.status_message != _TAKES_LONG:
                self._tell_how_long(attempt)
            return
        if attempt.last_submit_at is None:
            self._never_asked(job, attempt)
            return
        now, policy = self.services.clock(), self._policy
        if attempt.id in self.looked and timedelta(0) <= now - self.looked[attempt.id] < policy.apart:
            return
        folder = self.services.run(job.id).attempt(attempt.number)
        found = self.scheduler.find(attempt.tag, folder.root, unanswered)
        self.looked[attempt.id] = now
        self.services.failpoint("resolve.after-look")
        if found:
            watched = self._record(job.pk, attempt.id, Accepted(found[0]), note="found again by its tag")
            self.services.metrics.adoption("name")
            self.services.failpoint("resolve.after-adoption")
            self._give_back(attempt.tag, folder, watched, found)
        elif self._surely_absent(job, attempt, policy, now):
            self._begin(job, attempt)

    def _tell_how_long(self, attempt: Attempt) -> None:
        now, until = self.services.clock(), attempt.last_submit_at
        if until is None or now - (until - self._policy.asking) < _LONG:
            return
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            row = jobs.get_for_update(attempt.job_pk)
            if row.status == "submitting" and row.desired == "run" and row.attempt_id == attempt.id:
                jobs.set_status_message(row, _TAKES_LONG)

    def adopt(self, job: Job, attempt: Attempt, scheduler_id: str) -> None:
        """Watch the job that has claimed the attempt, and no other of its name."""
        with self.lease.write() as session:
            jobs = JobRepository(session, self.services.clock())
            row, fresh = jobs.get_for_update(job.pk), jobs.get_attempt(attempt.id)
            fresh.scheduler_id = scheduler_id
            jobs.add_event(row, "submitted", f"the scheduler has it as {scheduler_id}, says the claim in its folder")
        self.services.metrics.adoption("claim")
        log.info("adopted", scheduler_id=scheduler_id)

    def collect(self) -> None:
        """Record what the questions that were under way have brought."""
        for answer in self.hand_overs.collect():
            self.services.failpoint("collect.before-record")
            try:
                self._keep(answer)
            except (UnavailableError, LeaseLostError):
                raise
            except Exception:
                # It would fail again; without an answer the attempt is looked for.
                log.exception("an answer could not be recorded", attempt=answer.attempt_id)
            self.services.metrics.submission(_word(answer.outcome))
            self.services.failpoint("collect.after-record")
        self.services.metrics.handing_over(self.hand_overs.count)

    def _keep(self, answer: Answer) -> None:
        if isinstance(answer.outcome, Superseded):
            log.warning("another service has taken it up", attempt=answer.attempt_id)
        elif isinstance(answer.outcome, NotAsked):
            self._not_asked(answer, answer.outcome.message)
        elif isinstance(answer.outcome, Postponed):
            self.postponed.put_off(answer.attempt_id, self.services.clock())
            self._not_asked(answer, answer.outcome.message)
        else:
            self.postponed.forget(answer.attempt_id)
            watched = self._record(answer.job_pk, answer.attempt_id, answer.outcome)
            if isinstance(answer.outcome, Accepted) and watched != answer.outcome.scheduler_id:
                self._second(answer, answer.outcome.scheduler_id, watched)

    def _second(self, answer: Answer, double: str, watched: str | None) -> None:
        with self.services.database.read() as session:
            jobs = JobRepository(session, self.services.clock())
            job, attempt = jobs.load(answer.job_pk), jobs.get_attempt(answer.attempt_id)
        try:
            self._give_back(attempt.tag, self.services.run(job.id).attempt(attempt.number), watched, [double])
        except SchedulerUnavailableError as error:
            log.warning("a double stays in the queue until it is refused", attempt=attempt.id, error=str(error))

    def _give_back(self, tag: str, folder: AttemptLayout, watched: str | None, found: Sequence[str]) -> None:
        """Take doubles out of the queue. The claim keeps them from running; which job has it may be told by the
        service or, before its word has come or in its absence, by the folder."""
        claimant = read_claimant(folder)
        for double in found:
            if double not in (watched, claimant):
                self.scheduler.cancel(SubmittedJob(tag, double, folder.root))
                self.services.failpoint("resolve.after-double")

    def _never_asked(self, job: Job, attempt: Attempt) -> None:
        """Nothing of it can be anywhere: it is handed over now, or given up at once."""
        if job.desired != "run":
            self.postponed.forget(attempt.id)
            with self.lease.write() as session:
                self._give_up(JobRepository(session, self.services.clock()), job, attempt)
        elif self.hand_overs.room and not self.postponed.waits(attempt.id, self.services.clock()):
            self._begin(job, attempt)

    def _surely_absent(self, job: Job, attempt: Attempt, policy: LookupPolicy, now: datetime) -> bool:
        """Count one more clean look; True when it is to be submitted again."""
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            fresh = jobs.get_attempt(attempt.id)
            fresh.absence_checks += 1
            asked = fresh.last_submit_at or fresh.created_at
            if asked > now + policy.asking:
                # The clock was ahead when that was written.
                fresh.last_submit_at = now + policy.asking
                return False
            self.services.failpoint("resolve.before-count")
            sure = fresh.absence_checks >= policy.times and now - asked >= policy.after
            if sure and jobs.get_for_update(job.pk).desired != "run":
                self._give_up(jobs, job, attempt)
                return False
        self.services.failpoint("resolve.after-count")
        return sure and self.hand_overs.room

    def _give_up(self, jobs: JobRepository, job: Job, attempt: Attempt) -> None:
        row, fresh = jobs.get_for_update(job.pk), jobs.get_attempt(attempt.id)
        if row.status not in ("submitting", "cancelling", "lost") or fresh.scheduler_id is not None:
            return
        fresh.ended_at = self.services.clock()
        if row.desired == "cancelled":
            fresh.exit_reason = "user_cancelled"
            if row.status == "submitting":
                jobs.transition(row, "cancelling", "asked to stop")
            jobs.finish(row, "user_cancelled", "cancelled before the scheduler had it")
        else:
            fresh.exit_reason = "paused"
            jobs.transition(row, "queued", "taken back before the scheduler had it")
        self.services.failpoint("give-up.before-commit")

    def _new_attempt(self, jobs: JobRepository, job: Job, now: datetime) -> Attempt:
        spec = parse_spec(job.spec)
        restarts = max(0, spec.restart.max_retries - job.retries_used)
        attempt_id = new_attempt_id()
        before = jobs.get_attempt(job.attempt_id) if job.attempt_id else None
        attempt = Attempt(
            id=attempt_id,
            job_pk=job.pk,
            number=job.attempts + 1,
            tag=scheduler_tag(self.services.settings.instance, attempt_id),
            scheduler=self.scheduler.name,
            token_hash="",
            execution=job.next_execution,
            max_restarts=restarts,
            created_at=now,
            nodes=[],
            absence_checks=0,
            checkpoint_step=newest_step(job),
            excluded_nodes=next_excluded(before.excluded_nodes, before.failed_node) if before else [],
        )
        if before is not None and before.failed_node in attempt.excluded_nodes:
            jobs.add_event(
                job,
                "node_excluded",
                f"{before.failed_node} is left out of the next attempt: as far as can be told, attempt {before.number} "
                "failed because of it",
                level="warning",
                data={"node": before.failed_node, "attempt": before.number},
            )
        job.attempts += 1
        job.next_execution += restarts + 1
        job.attempt_id = attempt_id
        return attempt

    def _begin(self, job: Job, attempt: Attempt) -> None:
        job_id, attempt_id, seen = job.id, attempt.id, attempt.last_submit_at
        asking = self._policy.asking

        def hand_over() -> SubmitOutcome | NotAsked | Superseded:
            plan = self.preparation.prepare(self.lease, job_id, attempt_id, seen, asking)
            if isinstance(plan, Rejected | NotAsked | Superseded):
                return plan
            outcome = self.scheduler.submit(plan)
            self.services.failpoint("submit.after-answer")
            return outcome

        self.hand_overs.begin(job.pk, attempt_id, hand_over)

    def _not_asked(self, answer: Answer, message: str) -> None:
        with self.lease.write() as session:
            jobs = JobRepository(session, self.services.clock())
            job, attempt = jobs.get_for_update(answer.job_pk), jobs.get_attempt(answer.attempt_id)
            if attempt.scheduler_id is None:
                attempt.last_submit_at = None
            jobs.set_status_message(job, f"not handed over yet, and tried again: {message}")
            self.services.failpoint("not-asked.before-commit")

    def _record(
        self, job_pk: int, attempt_id: str, outcome: Accepted | Rejected | Ambiguous, note: str = ""
    ) -> str | None:
        """Keep the scheduler's answer, whatever the job's status has become meanwhile.

        Returns:
            The scheduler's id of the job that is watched now: the one that has claimed the attempt, where one has.
        """
        now = self.services.clock()
        with self.lease.write() as session:
            jobs = JobRepository(session, now)
            job, attempt = jobs.get_for_update(job_pk), jobs.get_attempt(attempt_id)
            if not isinstance(outcome, Ambiguous):
                self.looked.pop(attempt_id, None)
            id_ = outcome.scheduler_id if isinstance(outcome, Accepted) else None
            log.info("answer", job=job.id, attempt=attempt_id, scheduler_id=id_, outcome=_word(outcome))
            match outcome:
                case _ if job.attempt_id != attempt_id:
                    # An operator has settled it meanwhile; its worker would be refused.
                    log.warning("an answer about an attempt that is over", attempt=attempt_id, outcome=str(outcome))
                case Accepted(scheduler_id) if attempt.scheduler_id not in (None, scheduler_id):
                    jobs.add_event(job, "submitted", f"the scheduler has it a second time, as {scheduler_id}")
                case _ if attempt.scheduler_id is not None:
                    log.info("an answer after its worker's claim", attempt=attempt_id, outcome=str(outcome))
                case Accepted(scheduler_id):
                    attempt.scheduler_id, attempt.submitted_at = scheduler_id, now
                    jobs.add_event(job, "submitted", note or f"the scheduler has it as {scheduler_id}")
                    if job.status == "submitting":
                        jobs.transition(job, "pending", "waiting for the scheduler to start it")
                case Rejected(message, _) if attempt.excluded_nodes:
                    # Without these nodes it may be more than the cluster can ever give; better there than nowhere.
                    names = ", ".join(attempt.excluded_nodes)
                    attempt.excluded_nodes, attempt.last_submit_at = [], None
                    jobs.add_event(
                        job, "node_exclusion_lifted", f"{names} may run it again: {message}", level="warning"
                    )
                case Rejected(message, hint):
                    told = Failure(type="SubmissionRefused", message=message, hint=hint or None, final=True)
                    job.failure = told.model_dump(mode="json")
                    attempt.ended_at, attempt.exit_reason = now, "rejected"
                    jobs.finish(job, "rejected", message)
                case Ambiguous(message):
                    attempt.absence_checks, attempt.last_submit_at = 0, now
                    log.warning("no clear answer", job=job.id, attempt=attempt_id, tag=attempt.tag, message=message)
                    jobs.set_status_message(job, f"handed over without a clear answer ({message}); looking for it")
            self.services.failpoint("record.before-commit")
        return attempt.scheduler_id


_REFUSED = "Submit it again with these fields changed; `trainyard cluster` shows what there is."
_TOO_LARGE = (
    "Submit it again with what would fit: `trainyard plan` shows what it needs by part, `trainyard cluster` what there "
    "is; `--force` submits it as it is."
)


def _refuse(jobs: JobRepository, job: Job, problems: Sequence[Problem], hint: str) -> None:
    words = "; ".join(map(str, problems))
    job.failure = Failure(type="SpecError", message=words, hint=hint, final=True).model_dump(mode="json")
    jobs.finish(job, "rejected", words)


def _word(outcome: SubmitOutcome | NotAsked | Superseded) -> str:
    names = {
        NotAsked: "not_asked",
        Superseded: "superseded",
        Accepted: "accepted",
        Rejected: "rejected",
        Postponed: "postponed",
    }
    return names.get(type(outcome), "ambiguous")


def newest_step(job: Job) -> int | None:
    """What a next attempt can go on from, as far as is known: a script's checkpoints are its own affair, and the step
    that it has reached is what shows that it gets on."""
    if job.spec["task"] == "script":
        return job.progress["step"] if job.progress else None
    return job.last_checkpoint_step
