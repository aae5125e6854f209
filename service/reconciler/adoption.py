"""Adoption of everything that ran on after the backup, when the database was restored.

The run directories hold the records that the database lacks: attempts, claims, exit records and spools. Attempts are
inserted before anything is submitted, so that no second attempt is started beside a running attempt.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import structlog
from sqlalchemy.orm import Session

from service.core.clock import Clock
from service.core.errors import LeaseLostError, UnavailableError
from service.core.failpoints import Failpoint, no_failpoint
from service.core.settings import Settings
from service.core.untrusted_files import files_of_job
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.jobs.states import TRANSITIONS
from service.reconciler.repository import attempt_ids, jobs_to_examine
from service.reconciler.run_dir import read_claim, read_exit_record
from service.reconciler.unknown_attempts import UnknownAttempt, read_unknown_attempts
from service.scheduler.backends import names_entries
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.stored_spec import stored_restart
from trainyard.contract.wire.jobs import TERMINAL, JobStatus
from trainyard.contract.wire.reports import Claim

log = structlog.get_logger("adoption")

ADOPTED = "attempts_adopted"
_RECENT = timedelta(days=30)
"""Jobs that ended within this time before the newest change in the database may have been retried since the backup."""
_TICK_SECONDS = 10.0


@dataclass
class Adoption:
    """Examines the run directories once for each marker. A repetition after an interruption changes nothing."""

    lease: LeaderLease
    clock: Clock
    settings: Settings
    scheduler: Literal["local", "slurm"]
    failpoint: Failpoint = no_failpoint
    _jobs: deque[int] | None = field(default=None, init=False)
    """Primary keys of the jobs to examine; None: the marker has not been seen."""
    _is_finished: bool = field(default=False, init=False)
    """Whether all is done, but the marker could not be removed."""
    _adopted: int = field(default=0, init=False)

    def is_due(self) -> bool:
        """Return whether the database was restored and the run directories have not been examined since."""
        try:
            status = self.settings.restore_marker.lstat()
            # Where jobs run as their owners, anybody can create a file there.
            is_ours = self.settings.run_as == "service" or status.st_uid in (0, os.getuid())
            return not self._is_finished and is_ours
        except OSError:
            # Without the folder of the runs, nothing can be submitted either.
            return False

    def run_once(self) -> bool:
        """Continue for about ten seconds; return whether all is done, so that jobs can be processed.

        Raises:
            LeaseLostError: another service has become the leader.
            UnavailableError: the database does not answer.
        """
        if self._jobs is None:
            with self.lease.database.read() as session:
                self._jobs = deque(jobs_to_examine(session, _RECENT))
            log.warning("the database was restored: examining run directories", jobs=len(self._jobs))
        deadline = time.monotonic() + _TICK_SECONDS
        while self._jobs:
            if time.monotonic() >= deadline:
                return False
            try:
                self.examine(self._jobs[0])
            except (UnavailableError, LeaseLostError):
                raise
            except Exception:
                # One run directory must not keep the service from its other jobs.
                log.exception("a run directory could not be examined", job_pk=self._jobs[0])
            self._jobs.popleft()
        try:
            self.settings.restore_marker.unlink(missing_ok=True)
        except OSError as error:
            self._is_finished = True
            log.warning("the restore marker cannot be removed; the next start examines again", error=str(error))
        log.warning("run directories were examined after the restore", attempts=self._adopted)
        self._jobs, self._adopted = None, 0
        return True

    def examine(self, job_pk: int) -> None:
        """Adopt the attempts in the run directory of one job."""
        with self.lease.database.read() as session:
            job, known = JobRepository(session, self.clock()).load(job_pk), attempt_ids(session, job_pk)
        run = RunLayout(self.settings.runs / job.id)
        unknown = read_unknown_attempts(files_of_job(self.settings, job.unix_uid), run, job, known)
        if not unknown and job.status in (*TERMINAL, "queued", "paused"):
            return
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            row = jobs.get_for_update(job_pk)
            if row.next_execution != job.next_execution:
                log.warning("job has changed since; its run directory is not adopted", job=job.id)
                return
            if row.attempt_id is not None:
                self._mark_unread(jobs.reload_attempt(row.attempt_id), row, run, is_current=not unknown)
            if unknown:
                self._insert(session, jobs, row, unknown)
            elif row.attempt_id is not None:
                self._restore_claim(jobs, row, jobs.reload_attempt(row.attempt_id), run)
            self.failpoint("adoption.before-commit")
        self._adopted += len(unknown)

    def insert(self, job: Job) -> None:
        """Insert a job that the database lacks, and with it the attempts in its run directory, or nothing.

        A job without its running attempt could be resumed, and then two attempts would run.
        """
        files = files_of_job(self.settings, job.unix_uid)
        unknown = read_unknown_attempts(files, RunLayout(files.base / job.id), job, ())
        with self.lease.write() as session:
            jobs = JobRepository(session, self.clock())
            jobs.add(job)
            if unknown:
                self._insert(session, jobs, job, unknown)
            self.failpoint("adoption.before-commit")

    def _insert(self, session: Session, jobs: JobRepository, job: Job, unknown: Sequence[UnknownAttempt]) -> None:
        """Insert these attempts of a job, and make the last attempt its current attempt."""
        rows = [self._new_attempt(jobs, job, attempt) for attempt in unknown]
        session.add_all(rows)
        self._adopt(jobs, job, unknown, rows)

    def _mark_unread(self, attempt: Attempt, job: Job, run: RunLayout, *, is_current: bool) -> None:
        """Have the whole spool read of an attempt that had not ended before the backup."""
        if attempt.ended_at is not None:
            return
        attempt.spool_unread = True
        if not is_current:
            files = files_of_job(self.settings, job.unix_uid)
            record = read_exit_record(files, run.attempt(attempt.folder_name), attempt.executions)
            attempt.ended_at = self.clock()
            attempt.exit_reason = record.reason if record else "node_failure"
            job.open_spool = None if record else attempt.number

    def _restore_claim(self, jobs: JobRepository, job: Job, attempt: Attempt, run: RunLayout) -> None:
        """Record the claim of a known attempt that was claimed after the backup."""
        if attempt.claimed_at or attempt.ended_at:
            return
        claim = read_claim(files_of_job(self.settings, job.unix_uid), run.attempt(attempt.folder_name))
        if claim is None:
            return
        self._claim(attempt, claim)
        if job.status in ("submitting", "pending"):
            jobs.transition(job, "running", _running_message(claim))

    def _new_attempt(self, jobs: JobRepository, job: Job, unknown: UnknownAttempt) -> Attempt:
        launch, record, now = unknown.launch, unknown.exit_record, self.clock()
        attempt = Attempt(
            id=launch.attempt_id,
            job_pk=job.pk,
            number=launch.attempt,
            folder=unknown.folder,
            tag=launch.tag,
            scheduler=self.scheduler,
            token_hash=unknown.token_hash,
            execution=launch.execution,
            max_restarts=launch.max_restarts,
            created_at=now,
            last_submit_at=now,
            nodes=[],
            absence_checks=0,
            checkpoint_step=job.last_checkpoint_step,
            excluded_nodes=list(launch.excluded_nodes),
            spool_unread=True,
            ended_at=now,
            exit_reason=record.reason if record else "node_failure",
        )
        if unknown.claim is not None:
            self._claim(attempt, unknown.claim)
        return attempt

    def _claim(self, attempt: Attempt, claim: Claim) -> None:
        now = self.clock()
        attempt.claim_nonce, attempt.claimed_at, attempt.heartbeat_at = claim.nonce, now, now
        attempt.nodes = claim.node_names
        scheduler_id = claim.scheduler_id if names_entries(attempt.scheduler) else attempt.tag
        attempt.scheduler_id = scheduler_id or attempt.scheduler_id
        if attempt.scheduler_id is not None:
            attempt.submitted_at = attempt.submitted_at or now

    def _adopt(
        self, jobs: JobRepository, job: Job, unknown: Sequence[UnknownAttempt], attempts: Sequence[Attempt]
    ) -> None:
        """Make the last of these attempts the job's current attempt."""
        last, attempt, launch = unknown[-1], attempts[-1], unknown[-1].launch
        attempt.ended_at = attempt.exit_reason = None
        if len(unknown) > 1:
            job.open_spool = None if unknown[-2].exit_record else unknown[-2].launch.attempt
        job.attempt_id, job.attempts, job.next_execution = launch.attempt_id, launch.attempt, last.next_execution
        job.retries_used = max(0, stored_restart(job.spec).max_retries - launch.max_restarts)
        if job.origin is None and launch.origin is not None:
            job.origin = launch.origin.model_dump(mode="json")
        if job.first_execution < launch.first_execution <= launch.execution:
            # A retry from scratch, which removed all earlier checkpoints.
            job.first_execution, job.last_checkpoint_step = launch.first_execution, None
            job.progress, job.latest = None, {}
            jobs.mark_checkpoints_deleted(job)
        job.desired, job.pause_requested_at, job.failure, job.finished_at = "run", None, None, None
        numbers = [each.launch.attempt for each in unknown]
        message = f"attempt(s) {', '.join(map(str, numbers))} adopted from the run directory after a restore"
        jobs.add_event(job, ADOPTED, message, level="warning", data={"attempts": numbers})
        log.warning("adopted", job=job.id, attempts=[each.launch.attempt_id for each in unknown])
        target: JobStatus = "running" if last.claim is not None else "submitting"
        text = _running_message(last.claim) if last.claim else "Checking whether the scheduler has the adopted attempt."
        for status in _path(job.status, target):  # type: ignore[arg-type]
            jobs.transition(job, status, text)
        jobs.set_status_message(job, text)


def _running_message(claim: Claim) -> str:
    return f"Running on {claim.where}, according to its claim file."


def _path(source: JobStatus, target: JobStatus) -> list[JobStatus]:
    """Return the shortest path of legal transitions between two statuses, without the source."""
    paths: deque[list[JobStatus]] = deque([[source]])
    while paths[0][-1] != target:
        path = paths.popleft()
        following = TRANSITIONS[path[-1]] - TERMINAL - set(path)
        # `lost` would alert somebody; another path of the same length is preferred.
        paths.extend([*path, status] for status in sorted(following, key=lambda status: (status == "lost", status)))
    return paths[0][1:]
