"""The decision about one job, from a snapshot of what is known. Pure functions: no clock, database or scheduler."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from service.jobs.states import SUSPENDED, TRANSITIONS
from service.reconciler.run_dir import UnclaimedAttempt
from service.scheduler.base import EndedAs, Observation
from trainyard.contract.wire.jobs import Desired, JobStatus, StatusReason
from trainyard.contract.wire.reports import CONTINUE_REASONS, ExitReason, Failure, FinishRecord, end_text

MAX_CONTINUATIONS = 3
"""Continuations in a row without a newer checkpoint after which the job fails."""
CONTACT_TIMEOUT_SECONDS = 600.0
"""A run that should stop, is not in the scheduler's queue and gave no sign of life for this long counts as ended."""
HEARTBEAT_TIMEOUT_SECONDS = 60.0
"""Workers send a heartbeat every ten seconds; without one for this long, a pause request cannot reach the worker."""
MAX_DISK_WAITS = 8
"""Attempts in a row that a full disk ended, after which each uses a retry."""
_MAX_OBSERVATION_AGE_SECONDS = 30.0
"""An observation may be this old, and thus precede the claim. Slurm holds a requeued job for two minutes."""

MSG_REQUEUED = (
    "Requeued in Slurm by an operator or the site. A new attempt follows when Slurm has started and ended this one."
)
"""Slurm's reason for waiting, such as a hold, follows."""
MSG_CANCEL_PENDING = "Cancellation requested. Waiting for the scheduler to respond."
MSG_CANCELLING = "Cancellation requested. Waiting for all processes to end."
MSG_PAUSING = "Pause requested. The worker saves a checkpoint and stops."
MSG_WORKER_UNREACHABLE = (
    "Running, but the worker cannot reach the service. Check that its node can reach TRAINYARD_PUBLIC_URL and trusts "
    "the certificate; attempts/<n>-<id>/logs/launch.log in the run directory shows the error. The service reads the "
    "worker's reports from disk when the attempt ends."
)
MSG_SILENT = "Running, but the worker has sent nothing since"
"""Start of the message; the time of the last contact follows."""
MSG_STARTED = "The scheduler has started the job; waiting for the worker to report."
MSG_NOT_IN_QUEUE = "Running: heartbeats arrive, although the scheduler no longer lists the job."
MSG_STILL_RUNNING = "Slurm has ended the job, but its worker still runs. It was requested to save and stop."
MSG_LOST = (
    "Contact lost: the worker left no exit record and is not in the scheduler's queue. The job continues when a "
    "heartbeat arrives; an administrator can resolve it with `trainyard resolve`."
)


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
    """Continuations in a row without a newer checkpoint, including the one that would follow now."""
    on_time_limit: Literal["continue", "fail"]
    unclaimed: UnclaimedAttempt = field(default_factory=UnclaimedAttempt)
    """What the attempt's folder shows if no worker has claimed the attempt from the service."""
    run_dir_vanished: bool = False
    """The attempt was claimed and has ended, but its launch document is gone."""
    status_message: str = ""
    """The job's present status message."""
    previous_exits: tuple[str, ...] = ()
    """Exit reasons of the preceding attempts that brought no newer checkpoint either, oldest first."""
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


@dataclass(frozen=True)
class Decision:
    """What to do: a transition, a new status message, a cancellation by the scheduler, or nothing."""

    status: JobStatus | None = None
    message: str | None = None
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
    estimated_start: datetime | None = None
    """The scheduler's estimate while the attempt is pending."""


NO_CHANGE = Decision()


def decide(snapshot: JobSnapshot) -> Decision:
    """Return the next step toward the desired state; `NO_CHANGE` where evidence is missing."""
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
        known = snapshot.status == "cancelling" and snapshot.status_message != MSG_CANCEL_PENDING
        message = None if known else MSG_CANCELLING
        return Decision(status=_target_if_new(snapshot.status, "cancelling"), message=message, cancel=True)
    if snapshot.pausing and snapshot.status in ("pending", "running", "pausing"):
        return _pause(snapshot)
    return _pending_or_running(snapshot, observation)


def _scheduler_unreachable(snapshot: JobSnapshot) -> Decision:
    """Conclude nothing, but show that a cancellation was requested."""
    if snapshot.desired == "cancelled" and snapshot.status in ("pending", "running", "pausing"):
        return Decision(status="cancelling", message=MSG_CANCEL_PENDING)
    return NO_CHANGE


def _pause(snapshot: JobSnapshot) -> Decision:
    """Let a worker save and stop by itself; cancel an attempt that has not started or does not respond."""
    silent = min(snapshot.seconds_since_pause, snapshot.seconds_since_contact) >= HEARTBEAT_TIMEOUT_SECONDS
    if not snapshot.claimed:
        message, cancel = "Pause requested. Removing the job from the scheduler's queue.", True
    elif silent or snapshot.seconds_since_pause >= snapshot.pause_timeout_seconds:
        message, cancel = "Pause timeout: the worker did not stop in time, so the scheduler ends it.", True
    else:
        message, cancel = MSG_PAUSING, False
    return Decision(status=_target_if_new(snapshot.status, "pausing"), message=message, cancel=cancel)


def _still_running(snapshot: JobSnapshot) -> Decision:
    """Request the worker to stop, and wait: the next attempt would share the run directory with it."""
    if snapshot.desired == "cancelled":
        return Decision(status=_target_if_new(snapshot.status, "cancelling"), message=MSG_CANCELLING, request_stop=True)
    return Decision(message=MSG_STILL_RUNNING, request_stop=True)


def _target_if_new(status: JobStatus, target: JobStatus) -> JobStatus | None:
    return None if status == target else target


def _pending_or_running(snapshot: JobSnapshot, observation: Observation) -> Decision:
    if snapshot.status == "lost":
        revived: JobStatus = "running" if snapshot.claimed else "pending"
        return Decision(status=revived, message="Contact restored.")
    if snapshot.status == "pending" and not snapshot.claimed:
        started = MSG_WORKER_UNREACHABLE if snapshot.unclaimed.started else MSG_STARTED
        message = observation.message if observation.state == "pending" else started
        return Decision(message=message or None, estimated_start=observation.estimated_start)
    if snapshot.status != "running":
        return NO_CHANGE
    if observation.state == "pending" and snapshot.seconds_since_claim >= _MAX_OBSERVATION_AGE_SECONDS:
        # Attempts are submitted with `--no-requeue`, so this cannot be a preemption.
        return Decision(message=f"{MSG_REQUEUED} {observation.message}".strip())
    if observation.state == "running" and observation.message:
        # It is suspended, or its nodes are being cleaned up.
        return Decision(message=observation.message)
    if snapshot.status_message == MSG_NOT_IN_QUEUE:
        return Decision(message="Running: the scheduler lists the job again.")
    if observation.state == "running" and snapshot.status_message.startswith(SUSPENDED):
        return Decision(message="Running: no longer suspended in Slurm.")
    if observation.state == "running" and snapshot.seconds_since_contact >= HEARTBEAT_TIMEOUT_SECONDS:
        return Decision(message=_silent_message(snapshot))
    if snapshot.status_message.startswith(MSG_SILENT):
        return Decision(message="Running: heartbeats arrive again.")
    return NO_CHANGE


def _silent_message(snapshot: JobSnapshot) -> str:
    since = f"{snapshot.last_contact:%Y-%m-%d %H:%M:%S} UTC" if snapshot.last_contact else "its claim"
    return f"{MSG_SILENT} {since}. It trains on; its reports arrive when it reaches the service, or at its end."


def _absent(snapshot: JobSnapshot) -> Decision:
    """The scheduler does not list the attempt, and there is no exit record."""
    # A claim after a cancellation or pause request is refused, so an unclaimed attempt can no longer start.
    over = not snapshot.claimed or snapshot.seconds_since_contact >= CONTACT_TIMEOUT_SECONDS
    if snapshot.desired == "cancelled" and over:
        # An unclaimed attempt may be listed late; it is cancelled so that it does not start in vain.
        return replace(_cancelled(snapshot), cancel=not snapshot.claimed)
    if snapshot.desired == "cancelled":
        message = "Cancellation requested. The scheduler no longer lists the job; it ends after 10 minutes of silence."
        return Decision(status=_target_if_new(snapshot.status, "cancelling"), message=message)
    if snapshot.status == "lost":
        revived = snapshot.has_recent_heartbeat
        return Decision(status="running", message=MSG_NOT_IN_QUEUE) if revived else NO_CHANGE
    if snapshot.pausing and over:
        return _paused(snapshot, "node_failure" if snapshot.claimed else "preempted")
    if snapshot.pausing:
        message = "Pause requested. The scheduler no longer lists the job; it is paused after 10 minutes of silence."
        return Decision(status=_target_if_new(snapshot.status, "pausing"), message=message)
    if snapshot.has_recent_heartbeat:
        return Decision(message=MSG_NOT_IN_QUEUE)
    return Decision(status="lost", message=MSG_LOST)


def _after_end(snapshot: JobSnapshot) -> Decision:
    exit_reason = _exit_reason(snapshot)
    is_cancelled = snapshot.desired == "cancelled" or snapshot.status == "cancelling"
    if snapshot.run_dir_vanished and not is_cancelled:
        message = f"The run directory was deleted: {_RUN_DIR_VANISHED.message}."
        return Decision("failed", message, "error", _RUN_DIR_VANISHED, ended=True, exit_reason="error")
    if exit_reason == "completed":
        return Decision("succeeded", end_text(snapshot.exit_record), "completed", ended=True, exit_reason=exit_reason)
    if is_cancelled:
        return _cancelled(snapshot)
    if exit_reason in ("error", "out_of_memory", "disk_full", "stalled", "rejected"):
        failure = snapshot.exit_record.failure if snapshot.exit_record else _OUT_OF_MEMORY
        return _after_error(snapshot, exit_reason, failure)
    if snapshot.pausing or exit_reason == "paused":
        return _paused(snapshot, exit_reason)
    if exit_reason == "user_cancelled":
        by = f" ({snapshot.observation.message})" if snapshot.observation and snapshot.observation.message else ""
        message = f"Cancelled outside Trainyard, such as by `scancel`{by}. `trainyard retry` continues the job."
        return Decision("cancelled", message, "cancelled_outside", ended=True, exit_reason=exit_reason)
    if exit_reason == "time_limit" and snapshot.on_time_limit == "fail":
        message = "Time limit reached. `restart.on_time_limit: continue` would continue from the last checkpoint."
        return Decision("failed", message, "time_limit", ended=True, exit_reason=exit_reason)
    return _continue_or_fail(snapshot, exit_reason)


def _exit_reason(snapshot: JobSnapshot) -> ExitReason:
    """Return the exit record's reason, or the scheduler's if there is no record or the scheduler knows better."""
    ended_as = snapshot.observation.ended_as if snapshot.observation else None
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


def _scheduler_overrides(ended_as: EndedAs | None, exit_record: FinishRecord) -> bool:
    """Return whether the scheduler knows the reason better than the worker.

    A worker that receives a signal cannot distinguish a preemption from a cancellation or a failing node, and ranks
    that report only a lost peer do not know that its node failed.
    """
    if exit_record.reason == "preempted":
        return ended_as in ("cancelled", "node_failure", "time_limit")
    return ended_as == "node_failure" and exit_record.failure is not None and exit_record.failure.consequence


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
        return Decision(status="cancelling", message=MSG_CANCELLING)
    message = "All processes have ended." if snapshot.claimed else "Cancelled before the attempt started."
    return Decision("cancelled", message, "user_cancelled", ended=True, exit_reason="user_cancelled")


def _paused(snapshot: JobSnapshot, exit_reason: ExitReason) -> Decision:
    if "paused" not in TRANSITIONS[snapshot.status]:
        return Decision(status="pausing", message=MSG_PAUSING)
    if not snapshot.claimed:
        message = "Paused before the attempt started. The job was removed from the scheduler's queue."
    elif snapshot.exit_record is not None and snapshot.exit_record.reason in CONTINUE_REASONS | {"paused"}:
        message = f"Paused after step {snapshot.exit_record.step}. The allocation was released."
    else:
        message = "Paused without an exit record: it resumes from its last checkpoint. The allocation was released."
    attempt_exit = "paused" if not snapshot.claimed or exit_reason in ("preempted", "user_cancelled") else exit_reason
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


def _continue_or_fail(snapshot: JobSnapshot, exit_reason: ExitReason) -> Decision:
    """Queue a continuation, unless too many in a row have brought no newer checkpoint."""
    if snapshot.continuations_without_progress < MAX_CONTINUATIONS:
        message = f"To be continued from the last checkpoint. Cause: {_cause(snapshot, exit_reason)}"
        return Decision(status="queued", message=message, ended=True, exit_reason=exit_reason)
    startup_error = _startup_error(snapshot, exit_reason)
    failure = Failure(type="NotStarted", message=startup_error, hint=_STARTUP_HINT) if startup_error else None
    message = _retries_exhausted_message(snapshot, exit_reason)
    return Decision("failed", message, "retries_exhausted", failure, ended=True, exit_reason=exit_reason)


_STARTUP_HINT = (
    "Fix the reported error. On Slurm, each node needs the interpreter TRAINYARD_SLURM_PYTHON at the same path, with "
    "the worker installed. To check: srun -N1 <path> -c 'import torch, worker'."
)
_CAUSES = {
    "preempted": "preempted",
    "time_limit": "time limit reached",
    "node_failure": "processes ended without an exit record",
}
_REMEDIES = {
    "preempted": "use a partition or QOS without preemption",
    "time_limit": "raise resources.time_limit_minutes or use a partition with a longer limit (`trainyard cluster`)",
    "node_failure": "check the log of each attempt and its nodes",
}


def _cause(snapshot: JobSnapshot, exit_reason: ExitReason) -> str:
    """Return the cause of a continuation, with the scheduler's own words if the worker did not report it."""
    exit_record, observation = snapshot.exit_record, snapshot.observation
    if exit_reason == "preempted" and snapshot.status_message.startswith(MSG_REQUEUED):
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
    elif observation is not None and observation.ended_as == "dropped":
        cause = "removed by Slurm's controller, not by a user"
    elif startup_error := _startup_error(snapshot, exit_reason):
        cause = f"the worker did not start: {startup_error}"
    if exit_record is not None and exit_record.reason == exit_reason:
        return cause
    return f"{cause} ({observation.message})" if observation is not None and observation.message else cause


def _startup_error(snapshot: JobSnapshot, exit_reason: ExitReason) -> str:
    """Return the error that prevented the worker's start, if the folder shows one and nothing else explains the end."""
    node_failed = snapshot.observation is not None and snapshot.observation.ended_as == "node_failure"
    explained = exit_reason != "node_failure" or snapshot.exit_record is not None or node_failed
    return "" if explained else snapshot.unclaimed.startup_error


def _retries_exhausted_message(snapshot: JobSnapshot, exit_reason: ExitReason) -> str:
    """Return the causes of the last attempts' ends, and the remedies for them."""
    exits = [*snapshot.previous_exits, exit_reason]
    cause, count = _cause(snapshot, exit_reason), snapshot.continuations_without_progress
    if _startup_error(snapshot, exit_reason) and len(set(exits)) == 1:
        return f"{count} attempts in a row failed: {cause}"
    if len(set(exits)) > 1:
        cause = ", then ".join(_CAUSES.get(reason, reason) for reason in exits)
    remedies = "; ".join(_REMEDIES[reason] for reason in dict.fromkeys(exits) if reason in _REMEDIES)
    return (
        f"{count} attempts in a row ended without a newer checkpoint ({cause}). "
        f"Write checkpoints more often (checkpoint.every_steps), or {remedies}."
    )
