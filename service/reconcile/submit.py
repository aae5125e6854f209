"""Handing an attempt to the scheduler so that it runs once, whatever is lost on the way.

The intention is committed first; then the scheduler is asked; then the answer is recorded. An attempt without an
answer is never submitted again before look-ups have shown that the scheduler does not have it.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from service.access.tokens import hash_token, new_worker_token
from service.db.models import Attempt, Job
from service.dependencies import Services
from service.ids import new_attempt_id, scheduler_tag
from service.jobs.repository import JobRepository
from service.scheduler.base import Accepted, Ambiguous, Known, LaunchPlan, Rejected, Scheduler, SubmitOutcome
from service.scheduler.launch_plan import allowed, plan_launch
from trainyard.contract.launch import LaunchDocument
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.spec import dump_spec, parse_spec

log = structlog.get_logger("submit")


@dataclass(frozen=True)
class LookupPolicy:
    """How much looking makes sure that the scheduler does not have an attempt."""

    times: int
    after: timedelta
    apart: timedelta = timedelta(0)
    """Between two look-ups: each costs the scheduler an answer, and two in one breath are as good as one."""


LOOKUPS: Mapping[str, LookupPolicy] = {
    # The local queue is this service's own and is read under its lock: one clean look tells.
    "local": LookupPolicy(times=1, after=timedelta(0)),
    # sbatch may still be retrying by itself for two minutes, and slurmctld may list a job late.
    "slurm": LookupPolicy(times=3, after=timedelta(seconds=180), apart=timedelta(seconds=60)),
}


@dataclass(frozen=True)
class Submitter:
    """Submits queued jobs and resolves submissions without an answer."""

    services: Services
    scheduler: Scheduler
    python: str = sys.executable
    search_path: Sequence[Path] = ()
    looked: dict[str, datetime] = field(default_factory=dict)
    """When each unanswered attempt was last looked for. Forgotten at a restart, which looks at once."""
    batch_script: Callable[[LaunchDocument, LaunchPlan], str] | None = None
    """What is submitted, where the scheduler takes a script of its own kind."""

    def submit(self, job_no: int) -> None:
        """The next attempt of a queued job."""
        now = self.services.clock()
        with self.services.database.write() as session:
            jobs = JobRepository(session, now)
            job = jobs.locked(job_no)
            if job.status != "queued" or job.desired != "run":
                return
            attempt = self._new_attempt(job, now)
            session.add(attempt)
            jobs.move(job, "submitting", f"being handed to the scheduler ({self.scheduler.name})")
        self._hand_over(job, attempt)

    def resolve(self, job: Job, attempt: Attempt) -> None:
        """Find out what became of a submission without an answer.

        Raises:
            SchedulerUnavailableError: nothing was learned.
        """
        folder, now, policy = self._folder(job, attempt), self.services.clock(), LOOKUPS[self.scheduler.name]
        if attempt.id in self.looked and now - self.looked[attempt.id] < policy.apart:
            return
        found = self.scheduler.find(attempt.tag, folder.root)
        self.looked[attempt.id] = now
        if found:
            self._record(job.no, attempt.id, Accepted(found[0]), note="found again by its tag")
            for double in found[1:]:
                # The claim keeps it from running; this gives back its place in the queue.
                self.scheduler.cancel(Known(attempt.tag, double, folder.root))
            return
        with self.services.database.write() as session:
            jobs = JobRepository(session, now)
            fresh = jobs.attempt(attempt.id)
            fresh.lookups += 1
            sure = fresh.lookups >= policy.times and now - fresh.created_at >= policy.after
            row = jobs.locked(job.no)
            if sure and row.desired == "cancelled" and row.status in ("submitting", "cancelling"):
                fresh.ended_at, fresh.exit_reason = now, "user_cancelled"
                if row.status == "submitting":
                    jobs.move(row, "cancelling", "asked to stop")
                jobs.finish(row, "user_cancelled", "cancelled before the scheduler had it")
                return
        if sure:
            self._hand_over(job, attempt)

    def _new_attempt(self, job: Job, now: datetime) -> Attempt:
        spec = parse_spec(job.spec)
        restarts = max(0, spec.restart.max_retries - job.retries_used)
        attempt_id = new_attempt_id()
        attempt = Attempt(
            id=attempt_id,
            job_no=job.no,
            number=job.attempts + 1,
            tag=scheduler_tag(self.services.settings.instance, attempt_id),
            scheduler=self.scheduler.name,
            token_hash="",
            execution=job.next_execution,
            max_restarts=restarts,
            created_at=now,
            nodes=[],
            checkpoint_step=newest_step(job),
        )
        job.attempts += 1
        job.next_execution += restarts + 1
        job.attempt_id = attempt_id
        return attempt

    def _hand_over(self, job: Job, attempt: Attempt) -> None:
        try:
            plan = self._prepare(job, attempt)
            outcome: SubmitOutcome = self.scheduler.submit(plan)
        except ValueError as error:
            outcome = Rejected(str(error))
        except OSError as error:
            outcome = Ambiguous(f"the run directory cannot be written: {error}")
        self._record(job.no, attempt.id, outcome)

    def _prepare(self, job: Job, attempt: Attempt) -> LaunchPlan:
        """Everything that the worker will need, on disk, and the plan in the database."""
        run, folder = self.services.run(job.id), self._folder(job, attempt)
        document = self._document(job, attempt)
        plan = plan_launch(
            document,
            folder=folder.root,
            python=self.python,
            allowed_environment=allowed(os.environ),
            search_path=self.search_path,
        )
        if self.batch_script is not None:
            plan = replace(plan, script=self.batch_script(document, plan))
        token = new_worker_token(attempt.id)
        with self.services.database.write() as session:
            row = JobRepository(session, self.services.clock()).attempt(attempt.id)
            row.token_hash, row.script = hash_token(token), plan.script
        _write_files(run, folder, document, token)
        return plan

    def _document(self, job: Job, attempt: Attempt) -> LaunchDocument:
        spec = parse_spec(job.spec)
        ranks = min(spec.gpus, spec.resources.gpus_per_node or spec.gpus)
        return LaunchDocument(
            job_id=job.id,
            attempt_id=attempt.id,
            attempt=attempt.number,
            tag=attempt.tag,
            service_url=self.services.settings.service_url,
            execution=attempt.execution,
            max_restarts=attempt.max_restarts,
            nodes=spec.gpus // ranks,
            ranks_per_node=ranks,
            host_suffix=self.services.settings.slurm_host_suffix,
            time_limit_minutes=spec.resources.time_limit_minutes or self._default_limit(),
            lead_seconds=self.services.settings.slurm_lead_seconds,
            spec=spec,
        )

    def _default_limit(self) -> int | None:
        return self.services.settings.slurm_time_limit_minutes if self.scheduler.name == "slurm" else None

    def _record(self, job_no: int, attempt_id: str, outcome: SubmitOutcome, note: str = "") -> None:
        """Keep the scheduler's answer, whatever the job's status has become meanwhile."""
        now = self.services.clock()
        with self.services.database.write() as session:
            jobs = JobRepository(session, now)
            job, attempt = jobs.locked(job_no), jobs.attempt(attempt_id)
            if not isinstance(outcome, Ambiguous):
                self.looked.pop(attempt_id, None)
            match outcome:
                case Accepted(scheduler_id):
                    attempt.scheduler_id, attempt.submitted_at = scheduler_id, now
                    jobs.event(job, "submitted", note or f"the scheduler has it as {scheduler_id}")
                    if job.status == "submitting":
                        jobs.move(job, "pending", "waiting for the scheduler to start it")
                case Rejected(message):
                    attempt.ended_at, attempt.exit_reason = now, "rejected"
                    jobs.finish(job, "rejected", message)
                case Ambiguous(message):
                    attempt.lookups = 0
                    log.warning("submission without a clear answer", tag=attempt.tag, message=message)
                    jobs.say(job, f"handed over without a clear answer ({message}); looking for it")

    def _folder(self, job: Job, attempt: Attempt) -> AttemptLayout:
        return self.services.run(job.id).attempt(attempt.number)


def newest_step(job: Job) -> int | None:
    """What a next attempt can go on from, as far as is known: a script's checkpoints are its own affair, and the step
    that it has reached is what shows that it gets on."""
    if job.spec["task"] == "script":
        return job.progress["step"] if job.progress else None
    return job.last_checkpoint_step


def _write_files(run: RunLayout, folder: AttemptLayout, document: LaunchDocument, token: str) -> None:
    """The launch document last: a folder with it is complete."""
    write_atomic(run.spec, _json(dump_spec(document.spec)))
    write_atomic(folder.token, token + "\n", mode=0o600)
    for part in (folder.logs, folder.spool, folder.errors):
        part.mkdir(parents=True, exist_ok=True)
    write_atomic(folder.launch, document.model_dump_json(by_alias=True, indent=2))
    write_atomic(run.current, _json({"attempt_id": document.attempt_id, "attempt": document.attempt}))


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"
