"""The table of legal transitions of a job, and the final status for every reason. Pure functions."""

from collections.abc import Mapping

from service.core.errors import ConflictError
from trainyard.contract.wire.jobs import TERMINAL, JobStatus, StatusReason

ACTIVE: frozenset[JobStatus] = frozenset({"submitting", "pending", "running", "pausing", "cancelling", "lost"})
"""Statuses in which the scheduler has, or may have, an attempt of the job."""

TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    "queued": frozenset({"submitting", "failed", "paused", "cancelled"}),
    "submitting": frozenset({"pending", "running", "queued", "succeeded", "failed", "cancelling", "lost"}),
    "pending": frozenset({"running", "queued", "succeeded", "failed", "pausing", "cancelling", "cancelled", "lost"}),
    "running": frozenset({"queued", "pausing", "cancelling", "cancelled", "succeeded", "failed", "lost"}),
    "pausing": frozenset({"paused", "cancelling", "succeeded", "failed", "lost"}),
    "paused": frozenset({"queued", "cancelled"}),
    "cancelling": frozenset({"cancelled", "succeeded", "failed", "lost"}),
    "lost": frozenset(
        {
            "queued",
            "submitting",
            "pending",
            "running",
            "pausing",
            "paused",
            "cancelling",
            "succeeded",
            "failed",
            "cancelled",
        }
    ),
    "succeeded": frozenset(),
    "failed": frozenset({"queued"}),
    "cancelled": frozenset({"queued"}),
}

FINAL_STATUS: Mapping[StatusReason, JobStatus] = {
    "completed": "succeeded",
    "user_cancelled": "cancelled",
    "stopped_early": "cancelled",
    "cancelled_outside": "cancelled",
    "error": "failed",
    "out_of_memory": "failed",
    "disk_full": "failed",
    "time_limit": "failed",
    "node_failure": "failed",
    "preempted": "failed",
    "stalled": "failed",
    "rejected": "failed",
    "retries_exhausted": "failed",
}


class IllegalTransitionError(ConflictError):
    """The table does not have this transition."""

    code = "illegal_transition"


def check_transition(source: JobStatus, target: JobStatus, reason: StatusReason | None) -> None:
    """Check that the table has the transition and that a terminal status comes with a matching reason.

    Raises:
        IllegalTransitionError: the table does not have it, or the reason belongs to another status.
    """
    if target not in TRANSITIONS[source]:
        raise IllegalTransitionError(f"a job that is {source} cannot become {target}")
    if target in TERMINAL and (reason is None or FINAL_STATUS[reason] != target):
        raise IllegalTransitionError(f"{target} is not the final status of the reason {reason}")
