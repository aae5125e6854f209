"""The decision about one job, from a snapshot of all known facts. Pure functions: no clock, database or scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from service.jobs.conditions import Condition, minute_text
from service.jobs.states import TRANSITIONS
from service.reconciler.evidence import (
    CONTACT_TIMEOUT_SECONDS,
    Absence,
    EndReason,
    JobSnapshot,
    Verdict,
    cancelled_text,
    verdict,
)
from service.scheduler.base import Observation
from trainyard.contract.wire.jobs import ConditionCode, JobStatus, StatusReason
from trainyard.contract.wire.reports import CONTINUE_REASONS, Failure, end_text

MAX_CONTINUATIONS = 3
"""Attempts that the time limit ended without progress, after which the job fails: it would go on like this for ever."""
HEARTBEAT_TIMEOUT_SECONDS = 60.0
"""Workers send a heartbeat every ten seconds; after this long without a heartbeat, a pause request cannot reach the
worker."""
MAX_DISK_WAITS = 8
"""Attempts in a row that a full disk ended, after which each uses a retry."""
_MAX_OBSERVATION_AGE_SECONDS = 30.0
"""An observation may be this old, and thus precede the claim. Slurm holds a requeued job for two minutes."""

MIN_SITE_ENDS = 10
"""With fewer attempts that ended soon after their start, the job has mostly waited in the queue, and does not fail."""


@dataclass(frozen=True)
class Decision:
    """The next step: a transition, a new status message, a cancellation by the scheduler, or nothing."""

    status: JobStatus | None = None
    message: str | None = None
    """None: the message of the condition, if there is one."""
    reason: StatusReason | None = None
    failure: Failure | None = None
    cancel: bool = False
    """Whether to cancel the attempt in the scheduler."""
    ended: bool = False
    """Whether the attempt is over and all its processes have ended."""
    request_stop: bool = False
    """Whether the next heartbeat's reply requests the worker to stop."""
    uses_retry: bool = False
    exit_reason: str | None = None
    continuations: int | None = None
    """Ended: the attempts in a row that the time limit ended without progress."""
    estimated_start: datetime | None = None
    """The scheduler's estimate while the attempt is pending."""
    condition: Condition | None = None
    """The job's condition within its status."""

    @property
    def new_message(self) -> str | None:
        """The message to be shown; None: the present message stays."""
        return self.condition.message if self.condition and self.message is None else self.message


NO_CHANGE = Decision()


def decide(snapshot: JobSnapshot, *, answered: bool = False) -> Decision:
    """Return the next step toward the desired state; `NO_CHANGE` where evidence is missing.

    Args:
        answered: Without an observation: whether the scheduler has answered, but explains the attempt's end only later.
    """
    decision = _end_unknown(snapshot) if answered and snapshot.observation is None else _next_step(snapshot)
    if not decision.ended:
        return decision
    return replace(decision, continuations=_continuations(snapshot, decision.status, decision.exit_reason))


def _continuations(snapshot: JobSnapshot, status: JobStatus | None, exit_reason: str | None) -> int:
    """Count an end at the time limit without progress; a pause, and an end that the cluster caused, change nothing."""
    if snapshot.progressed:
        return 0
    return snapshot.continuations_without_progress + (exit_reason == "time_limit" and status != "paused")


def _next_step(snapshot: JobSnapshot) -> Decision:
    observation = snapshot.observation
    if observation is None:
        return _scheduler_unreachable(snapshot)
    if snapshot.still_running:
        return _still_running(snapshot)
    if observation.state == "ended" or (observation.state == "absent" and snapshot.exit_record is not None):
        return _after_end(snapshot)
    if observation.state == "absent":
        return _absent(snapshot)
    if snapshot.desired == "cancelled":
        return replace(_within(snapshot, "cancelling", "cancelling"), cancel=True)
    if snapshot.pausing and snapshot.status in ("pending", "running", "pausing"):
        return _pause(snapshot)
    return _pending_or_running(snapshot, observation)


def _scheduler_unreachable(snapshot: JobSnapshot) -> Decision:
    """Conclude nothing, but show that a cancellation was requested."""
    if snapshot.desired == "cancelled" and snapshot.status in ("pending", "running", "pausing"):
        return _within(snapshot, "cancelling", "cancel_pending")
    return NO_CHANGE


def _end_unknown(snapshot: JobSnapshot) -> Decision:
    """Conclude nothing, but replace a message that is outdated. A requeue explains the end that follows."""
    if snapshot.desired != "run":
        return _scheduler_unreachable(snapshot)
    is_shown = snapshot.status in ("pending", "running") and snapshot.condition != "requeued"
    return Decision(condition=Condition("end_unknown")) if is_shown else NO_CHANGE


def _pause(snapshot: JobSnapshot) -> Decision:
    """Let a worker save and stop by itself; cancel an attempt that has not started or does not respond."""
    silent = min(snapshot.seconds_since_pause, snapshot.seconds_since_contact) >= HEARTBEAT_TIMEOUT_SECONDS
    if not snapshot.claimed:
        return replace(_within(snapshot, "pausing", "pause_in_queue"), cancel=True)
    if silent or snapshot.seconds_since_pause >= snapshot.pause_timeout_seconds:
        return replace(_within(snapshot, "pausing", "pause_timeout"), cancel=True)
    return _within(snapshot, "pausing", "pausing")


def _still_running(snapshot: JobSnapshot) -> Decision:
    """Request the worker to stop, and wait: the next attempt would share the run directory with it."""
    if snapshot.desired == "cancelled":
        return replace(_within(snapshot, "cancelling", "cancelling"), request_stop=True)
    return Decision(condition=Condition("still_running"), request_stop=True)


def _within(snapshot: JobSnapshot, status: JobStatus, code: ConditionCode) -> Decision:
    """Return the decision for a condition of a status, which the job may have already."""
    return Decision(status=None if snapshot.status == status else status, condition=Condition(code))


def _pending_or_running(snapshot: JobSnapshot, observation: Observation) -> Decision:
    if snapshot.status == "lost":
        revived: JobStatus = "running" if snapshot.claimed else "pending"
        return Decision(status=revived, message="Contact restored.")
    if snapshot.status == "pending" and not snapshot.claimed:
        condition: Condition | None = Condition("worker_unreachable" if snapshot.unclaimed.started else "started")
        if observation.state == "pending":
            condition = _with_details("in_queue", observation.message) if observation.message else None
        return Decision(condition=condition, estimated_start=observation.estimated_start)
    if snapshot.status != "running":
        return NO_CHANGE
    if observation.state == "pending" and snapshot.seconds_since_claim >= _MAX_OBSERVATION_AGE_SECONDS:
        # Attempts are submitted with `--no-requeue`, so this cannot be a preemption.
        return Decision(condition=_with_details("requeued", observation.message))
    if observation.state == "running" and observation.message:
        code: ConditionCode = "suspended" if observation.suspended else "cleaning_up"
        return Decision(condition=_with_details(code, observation.message))
    if observation.state == "running" and snapshot.seconds_since_contact >= HEARTBEAT_TIMEOUT_SECONDS:
        since = f"{snapshot.last_contact:%Y-%m-%d %H:%M:%S} UTC" if snapshot.last_contact else "its claim"
        return Decision(condition=Condition("silent", {"since": since}))
    message = _ENDED_CONDITIONS.get(snapshot.condition) if observation.state == "running" else None
    return Decision(message=message) if message else NO_CHANGE


_ENDED_CONDITIONS: Mapping[ConditionCode | None, str] = {
    "not_in_queue": "Running: the scheduler lists the job again.",
    "end_unknown": "Running: the scheduler lists the job again.",
    "suspended": "Running: no longer suspended in Slurm.",
    "cleaning_up": "Running.",
    "still_running": "Running: the scheduler lists the job again.",
    "silent": "Running: heartbeats arrive again.",
}
"""The message of a running job after a condition of it has ended."""


def _with_details(code: ConditionCode, text: str) -> Condition:
    return Condition(code, {"details": text})


def _absent(snapshot: JobSnapshot) -> Decision:
    """The scheduler does not list the attempt, and there is no exit record."""
    # A claim after a cancellation or pause request is refused, so an unclaimed attempt can no longer start.
    over = not snapshot.claimed or snapshot.seconds_since_contact >= CONTACT_TIMEOUT_SECONDS
    if snapshot.desired == "cancelled" and over:
        # An unclaimed attempt may be listed late; it is cancelled so that it does not start in vain.
        return replace(_cancelled(snapshot), cancel=not snapshot.claimed)
    if snapshot.desired == "cancelled":
        return _within(snapshot, "cancelling", "cancel_unlisted")
    if snapshot.observation is not None and not snapshot.observation.confirmed:
        return NO_CHANGE
    if not snapshot.started and snapshot.absence is not None:
        return _unlisted(snapshot, snapshot.absence)
    if snapshot.status == "lost":
        if snapshot.has_recent_heartbeat:
            return Decision(status="running", condition=Condition("not_in_queue"))
        # A worker has claimed the attempt in its folder since: no next attempt follows.
        return Decision(condition=Condition("lost")) if snapshot.condition == "unlisted" else NO_CHANGE
    if snapshot.pausing and over:
        return _paused(snapshot, "node_failure")
    if snapshot.pausing:
        return _within(snapshot, "pausing", "pause_unlisted")
    if snapshot.has_recent_heartbeat:
        return Decision(condition=Condition("not_in_queue"))
    return Decision(status="lost", condition=Condition("lost"))


def _unlisted(snapshot: JobSnapshot, absence: Absence) -> Decision:
    """The scheduler does not list the attempt, which has not started. From its end on, its claim is refused."""
    if snapshot.pausing:
        return _paused(snapshot, "preempted")
    if not absence.is_certain:
        condition = Condition("unlisted", {"until": minute_text(absence.ends)})
        return Decision(status=None if snapshot.status == "lost" else "lost", condition=condition)
    message = f"To be submitted again: the scheduler has not listed the job since {minute_text(absence.since)}."
    # It may be listed late; it is cancelled so that it does not start in vain.
    return Decision("queued", message, ended=True, exit_reason="preempted", cancel=True)


def _after_end(snapshot: JobSnapshot) -> Decision:
    judged = verdict(snapshot)
    reason = judged.reason
    is_cancelled = snapshot.desired == "cancelled" or snapshot.status == "cancelling"
    if snapshot.run_dir_vanished and not is_cancelled:
        message = f"The run directory was deleted: {_RUN_DIR_VANISHED.message}."
        return Decision("failed", message, "error", _RUN_DIR_VANISHED, ended=True, exit_reason="error")
    if reason == "completed":
        return Decision("succeeded", end_text(snapshot.exit_record), "completed", ended=True, exit_reason=reason)
    if is_cancelled:
        return _cancelled(snapshot)
    if reason in ("error", "out_of_memory", "disk_full", "stalled", "rejected"):
        failure = snapshot.exit_record.failure if snapshot.exit_record else _OUT_OF_MEMORY
        return _after_error(snapshot, reason, failure)
    if snapshot.pausing or reason == "paused":
        return _paused(snapshot, reason)
    if reason == "user_cancelled":
        return Decision("cancelled", cancelled_text(judged), "cancelled_outside", ended=True, exit_reason=reason)
    if reason == "time_limit" and snapshot.on_time_limit == "fail":
        message = "Time limit reached. `restart.on_time_limit: continue` would continue from the last checkpoint."
        return Decision("failed", message, "time_limit", ended=True, exit_reason=reason)
    return _continue_or_fail(snapshot, judged)


_OUT_OF_MEMORY = Failure(
    type="OutOfMemory",
    message="the scheduler ended the attempt because it exceeded its memory allocation",
    hint="Raise resources.memory_gb_per_gpu or lower batch.micro_size.",
)
_RUN_DIR_VANISHED = Failure(
    type="RunDirectoryVanished",
    message="reports that had not reached the service and the checkpoints are lost",
    hint="Find out what deletes files below TRAINYARD_RUNS_DIR, such as a purge of a scratch filesystem.",
    final=True,
)


def _cancelled(snapshot: JobSnapshot) -> Decision:
    if "cancelled" not in TRANSITIONS[snapshot.status]:
        return Decision(status="cancelling", condition=Condition("cancelling"))
    message = "All processes have ended." if snapshot.claimed else "Cancelled before the attempt started."
    return Decision("cancelled", message, "user_cancelled", ended=True, exit_reason="user_cancelled")


_CANCELLED_BY = ("preempted", "user_cancelled", "cancelled_outside")
"""Reasons that the scheduler gives for an attempt that the service has cancelled."""


def _paused(snapshot: JobSnapshot, exit_reason: EndReason) -> Decision:
    if "paused" not in TRANSITIONS[snapshot.status]:
        return Decision(status="pausing", condition=Condition("pausing"))
    if not snapshot.claimed:
        message = "Paused before the attempt started. The job was removed from the scheduler's queue."
    elif snapshot.exit_record is not None and snapshot.exit_record.reason in CONTINUE_REASONS | {"paused"}:
        message = f"Paused after step {snapshot.exit_record.step}. The allocation was released."
    else:
        message = "Paused without an exit record: it resumes from its last checkpoint. The allocation was released."
    attempt_exit = "paused" if not snapshot.claimed or exit_reason in _CANCELLED_BY else exit_reason
    return Decision(status="paused", message=message, ended=True, exit_reason=attempt_exit)


def _after_error(
    snapshot: JobSnapshot,
    exit_reason: Literal["error", "out_of_memory", "disk_full", "stalled", "rejected"],
    reported: Failure | None,
) -> Decision:
    failure = reported or Failure(type="UnknownError", message="the worker reported no cause")
    message = failure.summary
    waits_for_disk = exit_reason == "disk_full" and snapshot.full_disks <= MAX_DISK_WAITS
    if exit_reason == "rejected" or failure.final or (snapshot.retries_left <= 0 and not waits_for_disk):
        return Decision("failed", message, exit_reason, failure, ended=True, exit_reason=exit_reason)
    left = "no retry used" if waits_for_disk else f"{snapshot.retries_left} left"
    status: JobStatus = "paused" if snapshot.status == "pausing" else "queued"
    message, uses_retry = f"To be retried ({left}) after {message}", not waits_for_disk
    return Decision(status, message, None, failure, ended=True, uses_retry=uses_retry, exit_reason=exit_reason)


def _continue_or_fail(snapshot: JobSnapshot, judged: Verdict) -> Decision:
    """Queue a continuation, unless the time limit does not suffice, or the cluster has ended attempts for days."""
    error, reason, cause = judged.startup_error, judged.reason, judged.cause
    failure = Failure(type="NotStarted", message=error, hint=_STARTUP_HINT) if error else None
    count = _continuations(snapshot, None, reason)
    if reason == "time_limit" and count >= MAX_CONTINUATIONS:
        message = (
            f"{count} attempts in a row reached the time limit without a newer checkpoint ({cause}). Write "
            "checkpoints more often (checkpoint.every_steps), or raise resources.time_limit_minutes or use a partition "
            "with a longer limit (`trainyard cluster`)."
        )
        return Decision("failed", message, "retries_exhausted", None, ended=True, exit_reason=reason)
    waited_long = snapshot.seconds_of_site_ends >= snapshot.site_patience_seconds
    if reason != "time_limit" and snapshot.site_ends >= MIN_SITE_ENDS and waited_long:
        days = snapshot.seconds_of_site_ends / 86400
        ends = f"{snapshot.site_ends} attempts in a row ended soon after their start"
        message = f"{ends} within {days:.1f} days, without an error of the job. The last: {cause}"
        return Decision("failed", message, "retries_exhausted", failure, ended=True, exit_reason=reason)
    message = f"To be continued from the last checkpoint. Cause: {cause}"
    if reason == "cancelled_outside":
        message += ". The next such end cancels the job, and so does `trainyard cancel`."
    return Decision("queued", message, None, failure, ended=True, exit_reason=reason)


def resumed(step: int | None) -> Decision:
    """Return the decision about a paused job that a user resumes.

    Args:
        step: The step of the newest checkpoint. The service does not know the step of checkpoints that a program wrote.
    """
    start = "the start, or from what its program saved" if step is None else f"the checkpoint of step {step}"
    return Decision("queued", f"Resumed. The next attempt runs from {start}.")


_STARTUP_HINT = (
    "Fix the reported error. On Slurm, each node needs the interpreter TRAINYARD_SLURM_PYTHON at the same path, with "
    "the worker installed. To check: srun -N1 <path> -c 'import torch, worker'."
)
