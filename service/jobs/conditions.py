"""Conditions of jobs: the reason why a job waits, or an unusual fact about it, within its status. Pure functions.

A condition is data, and its message is rendered from it. Nothing decides by the text of a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from service.db.models import Job
from trainyard.contract.wire.jobs import ConditionCode, JobCondition

TEXTS: Mapping[ConditionCode, str] = {
    "maintenance": "Waiting for the end of maintenance mode, on since {since}{reason}. The job is submitted then.",
    "gpu_quota": "{details}",
    "after": "Waiting for {jobs}, as `after` of the spec requests.",
    "after_failed": (
        "Not submitted, because `after` requires jobs to succeed: {jobs}. `trainyard retry {retry}` runs them again, "
        "and `trainyard cancel` ends this job."
    ),
    "after_deleted": (
        "Not submitted, because `after` requires jobs to succeed: {jobs}. It cannot start; `trainyard cancel` ends it."
    ),
    "sweep_limit": "Waiting for other members of sweep {sweep}, which runs at most {limit} at once.",
    "scheduler_unreachable": "Waiting for the scheduler, which has not responded since {since}.",
    "refusals": (
        "Not submitted yet: the scheduler refuses other jobs of the same user, account, QOS and partition for now; "
        "their messages state the reason."
    ),
    "refused_for_now": "Not submitted yet; the service retries. Cause: {cause}",
    "not_checked": "Not submitted yet: {cause}",
    "site_wait": (
        "Not submitted yet: {ends} attempts in a row ended soon after their start, the last by: {cause}. The next "
        "attempt follows at {until}; `trainyard cancel` and `trainyard retry` continue at once."
    ),
    "disk_wait": (
        "Not submitted yet: a disk was full or read-only. The next attempt follows at {until}; `trainyard cancel` and "
        "`trainyard retry` continue at once."
    ),
    "slow_submit": "Submission has taken more than a minute: sbatch or the disk of TRAINYARD_RUNS_DIR is slow.",
    "unconfirmed": (
        "Submitted without a clear answer ({cause}). Searching the scheduler for the job, until {until}; if it is "
        "absent, it is submitted again."
    ),
    "in_queue": "{details}",
    "started": "The scheduler has started the job; waiting for the worker to report.",
    "worker_unreachable": (
        "Running, but the worker cannot reach the service. Check that its node can reach TRAINYARD_PUBLIC_URL, or "
        "TRAINYARD_WORKER_URL where it is set, and trusts the certificate; attempts/<n>-<id>/logs/launch.log in the "
        "run directory shows the error. The service reads the worker's reports from disk when the attempt ends."
    ),
    "requeued": (
        "Requeued in Slurm by an operator or the site. A new attempt follows when Slurm has started and ended this "
        "one. {details}"
    ),
    "suspended": "{details}",
    "cleaning_up": "{details}",
    "silent": (
        "Running, but the worker has sent nothing since {since}. It trains on; its reports arrive when it reaches the "
        "service, or at its end."
    ),
    "standing_still": "Running. {details}",
    "not_in_queue": "Running: heartbeats arrive, although the scheduler no longer lists the job.",
    "end_unknown": (
        "The scheduler has ended the job or no longer lists it. The service waits for the accounting of Slurm (sacct), "
        "which states how it ended."
    ),
    "still_running": "Slurm has ended the job, but its worker still runs. It was requested to save and stop.",
    "pause_in_queue": "Pause requested. Removing the job from the scheduler's queue.",
    "pausing": "Pause requested. The worker saves a checkpoint and stops.",
    "pause_timeout": "Pause timeout: the worker did not stop in time, so the scheduler ends it.",
    "pause_unlisted": (
        "Pause requested. The scheduler no longer lists the job; it is paused after 10 minutes of silence."
    ),
    "cancel_pending": "Cancellation requested. Waiting for the scheduler to respond.",
    "cancelling": "Cancellation requested. Waiting for all processes to end.",
    "cancel_unlisted": (
        "Cancellation requested. The scheduler no longer lists the job; it ends after 10 minutes of silence."
    ),
    "unlisted": (
        "The scheduler no longer lists the job, which has not started. If it is still absent at {until}, a next "
        "attempt follows."
    ),
    "lost": (
        "Contact lost: the worker left no exit record and is not in the scheduler's queue. The job continues when a "
        "heartbeat arrives; an administrator can resolve it with `trainyard resolve`."
    ),
    "internal_error": "Internal error ({error}). The service retries; its log has the details.",
}
"""The message of each condition; the names in braces are its data."""


@dataclass(frozen=True)
class Condition:
    """A condition with its data."""

    code: ConditionCode
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The sentences that explain it to users."""
        return TEXTS[self.code].format_map(self.data).strip()


def columns(condition: Condition | None) -> tuple[str | None, dict[str, str] | None]:
    """Return the values of a job's columns `condition` and `condition_data`."""
    return (condition.code, dict(condition.data)) if condition else (None, None)


def condition_resource(job: Job) -> JobCondition | None:
    """Return a job's condition for clients."""
    return JobCondition(code=job.condition, data=job.condition_data or {}) if job.condition else None


def needs_user(job: Job) -> bool:
    """Return whether a job waits for an act of a user, who learns it from the level of its event."""
    return job.condition in ("after_failed", "after_deleted")


def has_message(job: Job, message: str, condition: Condition | None = None) -> bool:
    """Return whether a job already has the message and the condition."""
    current = (job.status_message, job.condition, job.condition_data)
    return current == (message, *columns(condition))


def minute_text(time: datetime) -> str:
    """Return a time in UTC for the data of a condition."""
    return f"{time:%Y-%m-%d %H:%M} UTC"
