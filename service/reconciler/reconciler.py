"""The reconciler: each tick loads all unfinished jobs, observes the scheduler, decides and applies."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import structlog

from service.cluster.repository import MaintenanceRepository
from service.core.clock import Clock
from service.core.errors import LeaseLostError, UnavailableError
from service.core.failpoints import Failpoint, no_failpoint
from service.core.observability import ServiceMetrics
from service.core.settings import Settings
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.conditions import Condition, has_message, minute_text
from service.jobs.dependencies import DependencyRepository
from service.jobs.prerequisites import waiting_jobs
from service.jobs.quota import UserQuotas
from service.jobs.repository import JobRepository
from service.jobs.states import ACTIVE
from service.jobs.submission import MSG_QUEUED
from service.projects.repository import ProjectRepository
from service.reconciler.adoption import Adoption
from service.reconciler.apply import DecisionWriter
from service.reconciler.cluster_poll import ClusterPoll
from service.reconciler.decide import NO_CHANGE, Decision, decide, resumed
from service.reconciler.evidence import with_job_names
from service.reconciler.late_evidence import LateEvidence
from service.reconciler.node_exclusion import node_fault
from service.reconciler.orphans import OrphanScan
from service.reconciler.queue_exclusion import QueueExclusion
from service.reconciler.quota import WAITS, blocked_jobs, quota_entry
from service.reconciler.repository import unread_attempts, waiting_jobs_after
from service.reconciler.run_dir import read_claimant, read_exit_record
from service.reconciler.snapshot import SnapshotLoader, stored_exit_record
from service.reconciler.spool_ingest import SpoolIngests
from service.reconciler.submission.attempts import submitted_job
from service.reconciler.submission.submitter import Submitter
from service.scheduler.backends import names_entries
from service.scheduler.base import NoAnswerYetError, Observation, Scheduler, SchedulerUnavailableError, SubmittedJob
from trainyard.contract.wire.cluster import MaintenanceResource


@dataclass(frozen=True)
class JobEntry:
    """An unfinished job and its current attempt."""

    job: Job
    attempt: Attempt | None

    @property
    def is_stopping(self) -> bool:
        """Whether the service has been requested to end the attempt."""
        is_requested = self.job.desired != "run" or self.job.status in ("cancelling", "pausing")
        return self.job.status in ACTIVE and is_requested

    @property
    def log_context(self) -> dict[str, str | None]:
        """The fields of every log line about the job."""
        attempt = self.attempt
        fields = {"attempt": attempt.id, "scheduler_id": attempt.scheduler_id} if attempt else {}
        return {"job": self.job.id} | fields


log = structlog.get_logger("reconciler")

_FAILURE_BUDGET_SECONDS = 30.0
"""Time per tick for failing scheduler calls about single jobs; the other jobs wait for the next tick."""
_LATE_REPORTS_SECONDS = 30.0
"""How long after the claim of the next attempt the processes of an earlier attempt have certainly ended."""
_CLOSE_SECONDS = 5.0
_QUEUED_PER_TICK = 50
"""Queued jobs that a tick loads of all users together, and as many of the waiting jobs: more than it can submit or
reject."""


@dataclass(frozen=True)
class _TickState:
    """The state of a tick for all its jobs together."""

    observations: Mapping[str, Observation] | None
    """Observations by tag; None: the scheduler did not answer."""
    job_names: Mapping[str, str]
    """Each job's name and id, by tag."""
    unconfirmed: Sequence[str]
    """Tags of submissions whose outcome is unknown."""
    loaded_at: datetime
    """When the rows of the jobs were loaded."""


class Reconciler:
    """Runs one tick per call of `run_once`; all state that must survive a tick is in the database."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        settings: Settings,
        quotas: UserQuotas,
        scheduler: Scheduler,
        submitter: Submitter,
        lease: LeaderLease,
        metrics: ServiceMetrics,
        failpoint: Failpoint = no_failpoint,
        scheduler_work: Sequence[Callable[[], bool]] = (),
    ):
        """
        Args:
            scheduler_work: Further requests to the scheduler; each returns whether more of them wait.
        """
        self.lease = lease
        self.changed = False
        """Whether the last tick wrote anything, or has a submission in flight."""
        self.ends_attempts = False
        """Whether a user waits for the end of an attempt."""
        self._database = database
        self._clock = clock
        self._instance = settings.instance
        self._runs = settings.runs  # The property makes the path anew each time.
        self._quotas = quotas
        self._scheduler = scheduler
        self._submitter = submitter
        self._metrics = metrics
        self._failpoint = failpoint
        self._cluster_poll = ClusterPoll(database, clock, scheduler, lease)
        self._scheduler_work = scheduler_work
        self._queue_exclusion = QueueExclusion(database, clock, scheduler, lease, settings.runs)
        self._late_evidence = LateEvidence(database, clock, scheduler, lease, settings.runs)
        self._snapshots = SnapshotLoader(database, clock, settings, watching_since=clock())
        self._decisions = DecisionWriter(lease, clock, failpoint)
        self._ingests = SpoolIngests(database, settings.log_limit, metrics.ingested)
        self._failure_budget = _FAILURE_BUDGET_SECONDS
        self._adoption = Adoption(lease, clock, settings, scheduler.name, failpoint)
        self._orphans = OrphanScan(clock, settings, scheduler, lease, self._adoption)
        self._last_turn = 0
        self._may_have_unread_spools = True
        self._may_state_maintenance = True
        """Whether jobs may still name a maintenance mode that has ended."""
        self._unread: set[int] = set()
        """Jobs with spools of earlier attempts that are to be read again; they end when that is done."""
        self._unavailable_since: datetime | None = None
        """When this process first failed to reach the scheduler; used in status messages only."""

    def run_once(self) -> bool:
        """Process every unfinished job once, if this service is the leader.

        Returns:
            Whether any job or request needs further ticks.

        Raises:
            UnavailableError: the database does not answer.
        """
        self.changed = False
        was_leader = self.lease.is_leader
        if not self.lease.acquire(self._clock()):
            return False
        if not was_leader:
            log.info("this service is the leader")
        self._failpoint("tick.after-lease")
        writes_before = self.lease.writes
        try:
            return self._tick()
        except LeaseLostError:
            log.warning("another service became the leader; the rest of this tick is dropped")
            return False
        finally:
            self.changed = self.lease.writes != writes_before or self._submitter.pool.busy

    def _tick(self) -> bool:
        self._submitter.collect()
        if self._adoption.is_due():
            self._may_have_unread_spools = True
            if not self._adoption.run_once():
                return True
            self._orphans.scan_again()
        has_work = False
        with self._isolate_errors():
            self._cluster_poll.run_once()
            for work in self._scheduler_work:
                has_work |= work()
        maintenance = self._load_maintenance()
        loaded_at = self._clock()
        entries, waiting, projects = self._load(all_queued=maintenance.active or self._may_state_maintenance)
        quota_entries = [quota_entry(entry.job) for entry in entries]
        blocked = blocked_jobs(quota_entries, self._quotas, maintenance, waiting, projects)
        self._end_waits([entry.job for entry in entries if entry.job.pk not in blocked])
        self._may_state_maintenance = maintenance.active
        self.ends_attempts = any(entry.is_stopping for entry in entries)
        self._failpoint("tick.after-load")
        state = self._observe(entries, loaded_at)
        self._failpoint("tick.after-observation")
        self._failure_budget = _FAILURE_BUDGET_SECONDS
        with self._isolate_errors():
            self._orphans.run_once()
            self._call_scheduler(self._submitter.search_withdrawn)
        self._ingests.start_tick({entry.attempt.id for entry in entries if entry.attempt is not None})
        self._read_again()
        self._submitter.turns.start_tick()
        for entry in self._in_turns(entries):
            job = entry.job
            with structlog.contextvars.bound_contextvars(**entry.log_context), self._isolate_errors(job):
                if job.pk in blocked:
                    self._set_condition(job, blocked[job.pk])
                elif job.status in ("queued", "paused"):
                    self._process_waiting(job, state)
                else:
                    self._process_submitted(job, entry.attempt, state)
        if state.observations is not None:
            with self._isolate_errors():
                self._queue_exclusion.run_once()
                self._late_evidence.run_once()
        self._submitter.collect()
        return has_work or any(entry.job.status in ACTIVE or entry.job.status == "queued" for entry in entries)

    def _load_maintenance(self) -> MaintenanceResource:
        with self._database.read() as session:
            maintenance = MaintenanceRepository(session, self._instance).resource()
        self._submitter.paused = maintenance.active
        return maintenance

    def _end_waits(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.status == "queued" and job.desired == "run" and job.condition in WAITS:
                self._decisions.apply(job, None, Decision(message=MSG_QUEUED))

    def _load(self, *, all_queued: bool) -> tuple[list[JobEntry], Mapping[int, Condition], Mapping[str, int]]:
        # Quotas depend on every queued job, and without a pool the submitter takes them all in the same tick.
        load_all = all_queued or self._quotas.limits_gpus or self._submitter.pool.threads == 0
        with self._database.read() as session:
            projects = ProjectRepository(session).gpu_quotas()
            load_all = load_all or bool(projects)
            turn = [] if load_all else waiting_jobs_after(session, self._last_turn, _QUEUED_PER_TICK)
            self._last_turn = turn[-1] if len(turn) == _QUEUED_PER_TICK else 0
            rows = JobRepository(session, self._clock()).list_active(None if load_all else _QUEUED_PER_TICK, turn)
            waiting = waiting_jobs(DependencyRepository(session).of_queued([job for job, _ in rows]))
        return [JobEntry(job, attempt) for job, attempt in rows], waiting, projects

    def _in_turns(self, entries: Sequence[JobEntry]) -> list[JobEntry]:
        """Return the entries with those first that are to end, which must not wait for a search of another job, and the
        queued jobs last: their checks may take long, and their users take turns."""
        queued = [entry for entry in entries if entry.job.status == "queued"]
        others = [entry for entry in entries if entry.job.status != "queued"]
        others.sort(key=lambda entry: not entry.is_stopping)
        return [*others, *self._submitter.turns.sort(queued, lambda entry: entry.job.created_by)]

    def _observe(self, entries: Sequence[JobEntry], loaded_at: datetime) -> _TickState:
        """Observe all submitted attempts with one call to the scheduler."""
        attempts = [(entry.job, entry.attempt) for entry in entries if entry.attempt is not None]
        submitted = [self._submitted(job, a) for job, a in attempts if job.status in ACTIVE and a.scheduler_id]
        observations: Mapping[str, Observation] | None = None
        try:
            observations = self._scheduler.observe(submitted)
            if self._unavailable_since is not None:
                self._unavailable_since = None
                self._cluster_poll.expire()
        except SchedulerUnavailableError as error:
            log.warning("scheduler unavailable", error=str(error))
            self._unavailable_since = self._unavailable_since or self._clock()
        unconfirmed = [
            a.tag for _, a in attempts if a.scheduler_id is None and a.last_submit_at is not None and a.ended_at is None
        ]
        return _TickState(
            observations, {a.tag: f"{job.name} ({job.id})" for job, a in attempts}, unconfirmed, loaded_at
        )

    def _process_waiting(self, job: Job, state: _TickState) -> None:
        """Process a queued or paused job, which the scheduler does not have."""
        if state.observations is None and job.desired == "run":
            # A submission could only end without an answer.
            if job.status == "queued":
                since = minute_text(self._unavailable_since or self._clock())
                self._set_condition(job, Condition("scheduler_unreachable", {"since": since}))
            return
        started = "the next attempt started" if job.attempts else "the start"
        if job.desired == "run" and job.status == "queued":
            self._submitter.submit(job.pk, job.created_by)
        elif job.desired == "run":
            self._decisions.apply(job, None, resumed(job.last_checkpoint_step))
        elif job.desired == "cancelled":
            message = "Cancelled while paused." if job.status == "paused" else f"Cancelled before {started}."
            self._decisions.apply(job, None, Decision("cancelled", message, "user_cancelled"))
        elif job.status == "queued":
            self._decisions.apply(job, None, Decision("paused", f"Paused before {started}."))

    def _process_submitted(self, job: Job, attempt: Attempt | None, state: _TickState) -> None:
        """Process a job that the scheduler has, may have, or had."""
        assert attempt is not None, f"job {job.id} is {job.status} without an attempt"
        answered, observation = state.observations is not None, (state.observations or {}).get(attempt.tag)
        if attempt.scheduler_id is None:
            if not answered and job.desired == "cancelled":
                self._set_condition(job, Condition("cancel_pending"))
            self._call_scheduler(lambda: self._submitter.resolve(job, attempt, state.unconfirmed))
        elif observation is not None:
            self._process_observed(job, attempt, with_job_names(observation, state.job_names, job), state.loaded_at)
        else:
            decision = decide(
                self._snapshots.load(job, attempt, None, None, loaded_at=state.loaded_at, ended=False),
                answered=answered,
            )
            if decision != NO_CHANGE:
                self._decisions.apply(job, attempt, decision)

    def _process_observed(self, job: Job, attempt: Attempt, observation: Observation, loaded_at: datetime) -> None:
        """Decide about the job from the observation of its attempt, and apply the decision."""
        if job.condition == "unlisted" and job.desired == "run" and self._snapshots.was_absent(attempt, observation):
            return
        files, folder = self._snapshots.files(job, attempt)
        gone = observation.state in ("ended", "absent")
        exit_record = stored_exit_record(attempt)
        exit_record = exit_record or (read_exit_record(files, folder, attempt.executions) if gone else None)
        snapshot = self._snapshots.load(job, attempt, observation, exit_record, loaded_at=loaded_at, ended=False)
        absent = observation.state == "absent" and exit_record is None
        # A worker that still sends heartbeats is still writing, even if the scheduler has no record of it.
        alive = snapshot.still_running or (absent and snapshot.has_recent_heartbeat)
        if job.status == "lost" and absent and not alive and job.desired != "cancelled" and job.condition != "unlisted":
            return
        claimant = read_claimant(files, folder) if gone and names_entries(attempt.scheduler) else None
        if claimant not in (None, attempt.scheduler_id):
            # A duplicate submission ended because another entry had claimed the attempt; that entry may still run.
            self._submitter.adopt(job, attempt, str(claimant))
            return
        ended = gone and not alive
        late_reports = job.open_spool is not None and (ended or snapshot.seconds_since_claim >= _LATE_REPORTS_SECONDS)
        if late_reports and not self._ingest_late_reports(job) and ended:
            return
        if ended:
            self._failpoint("tick.before-spool-ingest")
            if job.pk in self._unread or not self._ingest(job, attempt):
                return
            self._failpoint("tick.after-spool-ingest")
            snapshot = self._snapshots.load(job, attempt, observation, exit_record, loaded_at=loaded_at, ended=True)
        if observation.end is not None and observation.end != attempt.limit_ends_at:
            with self.lease.write() as session:
                JobRepository(session, self._clock()).get_attempt(attempt.id).limit_ends_at = observation.end
        decision = decide(snapshot)
        self._failpoint("tick.after-decision")
        if decision.cancel:
            self._call_scheduler(lambda: self._scheduler.cancel(self._submitted(job, attempt)))
            self._failpoint("tick.after-cancel")
        if decision != NO_CHANGE:
            fault = node_fault(snapshot, attempt.excluded_nodes, snapshot.stalled_hosts)
            self._decisions.apply(job, attempt, decision, exit_record, fault, snapshot)
            self._failpoint("tick.after-apply")

    def _ingest_late_reports(self, job: Job) -> bool:
        """Ingest the reports that an earlier attempt wrote after its end; return whether all are stored or put
        aside."""
        with self._database.read() as session:
            earlier = JobRepository(session, self._clock()).find_attempt(job, job.open_spool)
        if earlier is not None and not self._ingest(job, earlier, late=True):
            return False
        self._decisions.close_spool(job)
        return True

    def _ingest(self, job: Job, attempt: Attempt, *, late: bool = False) -> bool:
        """Ingest the reports of an attempt; return whether all are stored or put aside."""
        files, folder = self._snapshots.files(job, attempt)
        from_start = attempt.spool_unread
        if not self._ingests.run(attempt.id, files, folder, self._clock(), late=late, from_start=from_start):
            return False
        if from_start:
            with self.lease.write() as session:
                JobRepository(session, self._clock()).get_attempt(attempt.id).spool_unread = False
        return True

    def _read_again(self) -> None:
        """After a restore, ingest the reports of attempts that ended since the backup."""
        self._unread = set()
        if not self._may_have_unread_spools:
            return
        with self._database.read() as session:
            attempts = unread_attempts(session)
        for job, attempt in attempts:
            with structlog.contextvars.bound_contextvars(job=job.id, attempt=attempt.id), self._isolate_errors():
                if not self._ingest(job, attempt, late=True):
                    self._unread.add(job.pk)
        self._may_have_unread_spools = bool(attempts)

    def _set_condition(self, job: Job, condition: Condition) -> None:
        if not has_message(job, condition.message, condition):
            self._decisions.apply(job, None, Decision(condition=condition))

    def _call_scheduler(self, call: Callable[[], None]) -> None:
        """Make a scheduler call about one job, unless failing calls have used up the tick's budget."""
        if self._failure_budget <= 0:
            return
        started = time.monotonic()
        try:
            call()
        except NoAnswerYetError:
            pass  # A later tick makes the call again, and gets its outcome.
        except SchedulerUnavailableError as error:
            self._failure_budget -= time.monotonic() - started
            log.warning("scheduler unavailable", error=str(error))

    @contextmanager
    def _isolate_errors(self, job: Job | None = None) -> Iterator[None]:
        """Log and count an unexpected error, so that one job or poll does not stop the rest of the tick."""
        try:
            yield
        except (UnavailableError, LeaseLostError):
            raise
        except Exception as error:
            log.exception("part of the tick failed")
            self._metrics.tick_failed()
            if job is not None:
                self._set_condition(job, Condition("internal_error", {"error": type(error).__name__}))

    def _submitted(self, job: Job, attempt: Attempt) -> SubmittedJob:
        return submitted_job(self._runs, job, attempt, is_stopping=JobEntry(job, attempt).is_stopping)

    def renew(self) -> None:
        """Renew the lease during a long tick."""
        self.lease.renew(self._clock())

    def close(self) -> None:
        """Wait up to five seconds for submissions in flight, record their outcome and release the lease."""
        self._submitter.pool.wait(_CLOSE_SECONDS)
        try:
            self._submitter.collect()
        except LeaseLostError:
            return
        self._failpoint("close.before-release")
        self.lease.release(self._clock())
