"""What is known about an attempt, and what follows about the reason of its end. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from service.db.models import Job
from service.reconciler.run_dir import UnclaimedAttempt
from service.scheduler.base import EndedAs, Observation
from trainyard.contract.wire.jobs import ConditionCode, Desired, JobStatus
from trainyard.contract.wire.reports import ExitReason, FinishRecord

CONTACT_TIMEOUT_SECONDS = 600.0
"""A run that should stop, is not in the scheduler's queue and gave no sign of life for this long counts as ended."""


@dataclass(frozen=True)
class JobSnapshot:
    """What is known about a job whose attempt was submitted to the scheduler."""

    status: JobStatus
    desired: Desired
    claimed: bool
    observation: Observation | None
    """None: the scheduler did not answer."""
    exit_record: FinishRecord | None
    retries_left: int
    """Retries left after this attempt's in-place restarts."""
    continuations_without_progress: int
    """Attempts before this one that the time limit ended without progress, apart from those that the cluster ended."""
    on_time_limit: Literal["continue", "fail"]
    unclaimed: UnclaimedAttempt = field(default_factory=UnclaimedAttempt)
    """What the attempt's folder shows if no worker has claimed the attempt from the service."""
    run_dir_vanished: bool = False
    """The attempt was claimed and has ended, but its launch document is gone."""
    condition: ConditionCode | None = None
    """The job's present condition."""
    progressed: bool = False
    """Whether the attempt, which is over, has brought the job on, or nobody can know."""
    site_ends: int = 0
    """Attempts in a row, this one included, that ended soon after their start, if the cluster ended this one."""
    seconds_of_site_ends: float = 0.0
    """Since the first of them was made."""
    site_patience_seconds: float = 7 * 86400.0
    """How long the cluster may end attempts soon after their start before the job fails."""
    stalled_hosts: frozenset[str] = frozenset()
    """The nodes of the ranks that stalled earlier attempts."""
    full_disks: int = 0
    """Attempts in a row, this one included, that a full disk ended."""
    seconds_since_claim: float = 0.0
    seconds_since_contact: float = 0.0
    """Since the worker's last sign of life, or since this service started to listen."""
    last_contact: datetime | None = None
    """When the worker last sent a heartbeat or claimed its attempt; None before the claim."""
    has_recent_heartbeat: bool = False
    seconds_since_stop: float = 0.0
    """Since the worker was first requested to stop after the scheduler had ended its attempt."""
    seconds_since_pause: float = 0.0
    pause_timeout_seconds: float = CONTACT_TIMEOUT_SECONDS
    """How long a worker may take to save and stop after a pause request."""

    @property
    def still_running(self) -> bool:
        """Whether the scheduler has ended the attempt, but its worker sends heartbeats and has not been given up."""
        observation = self.observation
        if observation is None or observation.state != "ended" or not observation.processes_may_live:
            return False
        alive = self.exit_record is None and self.has_recent_heartbeat
        return alive and self.seconds_since_stop < self.pause_timeout_seconds

    @property
    def pausing(self) -> bool:
        """Whether to pause; a pause that has begun is completed, even if the desired state changes back."""
        return self.status == "pausing" or (self.desired == "paused" and self.status != "cancelling")


def exit_reason_of(snapshot: JobSnapshot) -> ExitReason:
    """Return the exit record's reason, or the scheduler's if there is no record or the scheduler knows better."""
    ended_as = snapshot.observation.ended_as if snapshot.observation else None
    if _prolog_failed(snapshot):
        return "node_failure"
    if snapshot.exit_record is not None and not _scheduler_overrides(ended_as, snapshot.exit_record):
        return snapshot.exit_record.reason
    reasons: dict[EndedAs | None, ExitReason] = {
        "cancelled": "user_cancelled",
        "dropped": "preempted",
        "preempted": "preempted",
        "time_limit": "time_limit",
        "out_of_memory": "out_of_memory",
    }
    return reasons.get(ended_as, "node_failure")


def _prolog_failed(snapshot: JobSnapshot) -> bool:
    """Return whether the prolog of the site failed. Slurm then cancels the job, as if a user had."""
    started = snapshot.claimed or snapshot.unclaimed.started
    return snapshot.observation is not None and snapshot.observation.prolog_failed and not started


def _scheduler_overrides(ended_as: EndedAs | None, exit_record: FinishRecord) -> bool:
    """Return whether the scheduler knows the reason better than the worker.

    A worker that receives a signal cannot distinguish a preemption from a cancellation or a failing node, and ranks
    that report only a lost peer do not know that its node failed.
    """
    if exit_record.reason == "preempted":
        return ended_as in ("cancelled", "node_failure", "time_limit")
    return ended_as == "node_failure" and exit_record.failure is not None and exit_record.failure.consequence


_CAUSES = {
    "preempted": "preempted",
    "time_limit": "time limit reached",
    "node_failure": "processes ended without an exit record",
}


def cause_of(snapshot: JobSnapshot, exit_reason: ExitReason) -> str:
    """Return the cause of a continuation, with the scheduler's own words if the worker did not report it."""
    exit_record, observation = snapshot.exit_record, snapshot.observation
    if exit_reason == "preempted" and snapshot.condition == "requeued":
        return "requeued by an operator or the site"
    if exit_reason == "preempted" and observation is not None and observation.ended_as == "failed":
        # Slurm names a preemption; the worker only knows that it received a signal to end.
        return f"ended by a signal that is no preemption ({observation.message})"
    if exit_reason == "preempted" and observation is not None and observation.ended_as == "completed":
        return f"requested to stop by a signal, as before a preemption ({observation.message})"
    cause = _CAUSES[exit_reason]
    if exit_record is not None and exit_record.reason == "node_failure" and exit_record.failure is not None:
        cause = exit_record.failure.message
    elif observation is not None and observation.ended_as == "node_failure":
        began = snapshot.claimed or observation.nodes or snapshot.unclaimed != UnclaimedAttempt()
        cause = "node failure" if began else "ended by Slurm before it started"
    elif _prolog_failed(snapshot):
        cause = "the prolog of the site failed"
    elif observation is not None and observation.ended_as == "launch_failed":
        cause = "Slurm could not launch the job on its node"
    elif observation is not None and observation.ended_as == "dropped":
        cause = "removed by Slurm's controller, not by a user"
    elif startup_error := startup_error_of(snapshot, exit_reason):
        cause = f"the worker did not start: {startup_error}"
    if exit_record is not None and exit_record.reason == exit_reason:
        return cause
    return f"{cause} ({observation.message})" if observation is not None and observation.message else cause


def startup_error_of(snapshot: JobSnapshot, exit_reason: ExitReason) -> str:
    """Return the error that prevented the worker's start, if the folder shows one and nothing else explains the end."""
    node_failed = snapshot.observation is not None and snapshot.observation.ended_as == "node_failure"
    explained = exit_reason != "node_failure" or snapshot.exit_record is not None or node_failed
    return "" if explained else snapshot.unclaimed.startup_error


def with_job_names(observation: Observation, job_names: Mapping[str, str], job: Job) -> Observation:
    """Return a job's observation with names in place of tags in its message; for owners, without those of others."""
    message = observation.message
    for tag in observation.blocked_by:
        message = message.replace(tag, job_names.get(tag, tag) if job.unix_uid is None else "another job")
    return replace(observation, message=message) if message != observation.message else observation
