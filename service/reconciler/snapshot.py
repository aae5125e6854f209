"""Loading all facts that `decide` needs about an attempt."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog
from pydantic import ValidationError

from service.checkpoints.program_output import newest_checkpoint
from service.core.clock import Clock
from service.core.settings import Settings
from service.core.untrusted_files import UntrustedFiles, files_of_job
from service.db.engine import Database
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.jobs.service import RETRY
from service.reconciler.evidence import Absence, JobSnapshot, with_memory_error
from service.reconciler.node_exclusion import stalled_host
from service.reconciler.run_dir import UnclaimedAttempt, has_vanished, read_memory_error, read_unclaimed
from service.reconciler.site_events import STEADY, ended_by_site
from service.reconciler.submission.attempts import full_disks, newest_step
from service.scheduler.base import Observation
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.stored_spec import stored_restart
from trainyard.contract.wire.reports import FinishRecord

log = structlog.get_logger("reconciler")

_FORGET_ABSENCE = timedelta(hours=1)
"""Absent attempts are looked at each second or so; the others have ended."""
_RECENT_HEARTBEAT = timedelta(seconds=30)
"""Workers send a heartbeat every ten seconds."""


@dataclass(frozen=True)
class SnapshotLoader:
    """Loads job snapshots from the loaded rows, the database and the attempt's folder."""

    database: Database
    clock: Clock
    settings: Settings
    watching_since: datetime
    """When this process began to reconcile; silence before that means nothing."""
    _absences: dict[str, Absence] = field(default_factory=dict)
    """Absences by attempt id."""

    def load(
        self,
        job: Job,
        attempt: Attempt,
        observation: Observation | None,
        exit_record: FinishRecord | None,
        *,
        loaded_at: datetime,
        ended: bool,
    ) -> JobSnapshot:
        """Return the snapshot for `decide`.

        Args:
            observation: None if the scheduler did not answer.
            loaded_at: When the rows were loaded. Later heartbeats are unknown, so silence is measured until then.
            ended: Whether the attempt is over; only then are retries and continuations counted.
        """
        if ended and observation is not None and exit_record is None:
            observation = with_memory_error(observation, read_memory_error(*self.files(job, attempt)))
        snapshot = JobSnapshot(
            status=job.status,  # type: ignore[arg-type]
            desired=job.desired,  # type: ignore[arg-type]
            claimed=attempt.claimed_at is not None,
            unclaimed=self._unclaimed(job, attempt, observation, ended=ended),
            observation=observation,
            run_dir_vanished=ended and attempt.claimed_at is not None and has_vanished(*self.files(job, attempt)),
            exit_record=exit_record,
            condition=job.condition,  # type: ignore[arg-type]
            site_patience_seconds=self.settings.site_patience_days * 86400,
            absence=self._absence(attempt.id, observation),
            seconds_since_claim=_seconds_since(attempt.claimed_at, loaded_at),
            seconds_since_contact=_seconds_since_contact(attempt, self.watching_since, loaded_at),
            last_contact=attempt.heartbeat_at or attempt.claimed_at,
            has_recent_heartbeat=_has_recent_heartbeat(attempt, loaded_at),
            seconds_since_stop=_seconds_since(attempt.stop_requested_at, loaded_at),
            seconds_since_pause=self._seconds_since_pause(job, loaded_at),
            pause_timeout_seconds=self.settings.pause_timeout_seconds,
        )
        return self._with_history(snapshot, job, attempt) if ended else snapshot

    def _with_history(self, snapshot: JobSnapshot, job: Job, attempt: Attempt) -> JobSnapshot:
        """Add the history of the job's attempts, including this attempt, which is over."""
        # The spool may have brought a checkpoint that the loaded row does not include.
        with self.database.read() as session:
            jobs = JobRepository(session, self.clock())
            fresh = jobs.get(job.id)
            attempts = [one for one in jobs.list_attempts(fresh) if one.number < attempt.number]
            retry = jobs.last_event(fresh, RETRY, since=None)
            retries_used = fresh.retries_used + restarts(jobs, attempt, snapshot.exit_record)
        restart = stored_restart(fresh.spec)
        progressed = self._progressed(fresh, attempt)
        since = retry.created_at if retry else None
        by_site = ended_by_site(attempts, newest_step(fresh), since)
        first = by_site[-1] if by_site else attempt
        return replace(
            snapshot,
            retries_left=restart.max_retries - retries_used,
            continuations_without_progress=fresh.continuations_without_progress,
            on_time_limit=restart.on_time_limit,
            progressed=progressed,
            site_ends=0 if progressed or self._ran(attempt) >= STEADY else len(by_site) + 1,
            seconds_of_site_ends=_seconds_since(first.created_at, self.clock()),
            stalled_hosts=_stalled_hosts(attempts),
            full_disks=1 + full_disks(attempts),
            cancelled_before=_is_cancelled_outside(attempts[-1:], since),
        )

    def was_absent(self, attempt: Attempt, observation: Observation) -> bool:
        """Return whether the attempt is absent as before, and nothing new can follow within this minute."""
        absence = self._absences.get(attempt.id)
        return observation.state == "absent" and absence is not None and absence.again(self.clock()) is absence

    def _absence(self, attempt_id: str, observation: Observation | None) -> Absence | None:
        before = self._absences.pop(attempt_id, None)
        if observation is None or observation.state != "absent":
            return None
        now = self.clock()
        if before is None:
            for forgotten in [key for key, each in self._absences.items() if now - each.last > _FORGET_ABSENCE]:
                del self._absences[forgotten]
        absence = self._absences[attempt_id] = before.again(now) if before else Absence(now, now)
        return absence

    def _ran(self, attempt: Attempt) -> timedelta:
        now = self.clock()
        return now - (attempt.claimed_at or now)

    def _progressed(self, job: Job, attempt: Attempt) -> bool:
        """Return whether an attempt, which is over, has brought its job on.

        A program need not report steps. It has progressed if it wrote a checkpoint or ran for long; without
        steps and checkpoints nobody knows, and a job does not end for that.
        """
        if newest_step(job) != attempt.checkpoint_step:
            return True
        if not task_kind(job.spec["task"]).runs_program or attempt.claimed_at is None:
            return False
        newest = newest_checkpoint(*self.files(job, attempt), job.spec)
        if newest is None and newest_step(job) is None:
            return True
        written = newest is not None and newest >= attempt.claimed_at.timestamp()
        return written or self._ran(attempt) >= STEADY

    def _unclaimed(
        self, job: Job, attempt: Attempt, observation: Observation | None, *, ended: bool
    ) -> UnclaimedAttempt:
        # The folders of pending attempts, of which there may be thousands, are not read.
        if attempt.claimed_at is not None or observation is None or observation.state == "pending":
            return UnclaimedAttempt()
        return read_unclaimed(*self.files(job, attempt), ended=ended)

    def files(self, job: Job, attempt: Attempt) -> tuple[UntrustedFiles, AttemptLayout]:
        """Return access to the files of the job, and the folder of the attempt."""
        files = files_of_job(self.settings, job.unix_uid)
        return files, RunLayout(files.base / job.id).attempt(attempt.folder_name)

    def _seconds_since_pause(self, job: Job, now: datetime) -> float:
        """Return the seconds since the pause request could reach the worker, not counting downtime of this service."""
        requested = max(job.pause_requested_at or now, self.watching_since)
        return max(0.0, (now - requested).total_seconds())


def restarts(jobs: JobRepository, attempt: Attempt, exit_record: FinishRecord | None) -> int:
    """Return the in-place restarts of an attempt, counted from the reports if the launcher left no exit record."""
    return exit_record.restarts if exit_record is not None else jobs.count_restarts(attempt)


def _stalled_hosts(attempts: Sequence[Attempt]) -> frozenset[str]:
    records = (stored_exit_record(attempt) for attempt in attempts)
    return frozenset(host for record in records if (host := stalled_host(record)) is not None)


def _is_cancelled_outside(last: Sequence[Attempt], retry: datetime | None) -> bool:
    """Return whether an unknown user cancelled the last attempt, if there is one, after the last retry."""
    ends = [attempt.ended_at for attempt in last if attempt.exit_reason == "cancelled_outside" and attempt.ended_at]
    return any(retry is None or end >= retry for end in ends)


def stored_exit_record(attempt: Attempt) -> FinishRecord | None:
    """Return the exit record that the worker sent; None if a former version stored an invalid record."""
    if attempt.finish is None:
        return None
    try:
        return FinishRecord.model_validate(attempt.finish)
    except ValidationError:
        log.warning("stored exit record is invalid", attempt=attempt.id)
        return None


def _has_recent_heartbeat(attempt: Attempt, now: datetime) -> bool:
    # A clock that was set back does not make a heartbeat recent for longer.
    return attempt.heartbeat_at is not None and abs(now - attempt.heartbeat_at) < _RECENT_HEARTBEAT


def _seconds_since(time: datetime | None, now: datetime) -> float:
    return 0.0 if time is None else (now - time).total_seconds()


def _seconds_since_contact(attempt: Attempt, watching_since: datetime, now: datetime) -> float:
    """Return the seconds since the worker's last sign of life, not counting downtime of this service."""
    times = [at for at in (attempt.submitted_at, attempt.claimed_at, attempt.heartbeat_at) if at is not None]
    return (now - max([*times, watching_since])).total_seconds()
