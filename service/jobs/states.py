"""The one table of legal moves of a job, and the final status of every reason. Pure."""

from collections.abc import Mapping

from service.core.errors import ConflictError
from trainyard.contract.resources import TERMINAL, JobStatus, StatusReason

ACTIVE: frozenset[JobStatus] = frozenset(
    {"submitting", "pending", "running", "pausing", "cancelling", "lost"},
)
"""The scheduler has, or may have, something of the job."""

MOVES: Mapping[JobStatus, frozenset[JobStatus]] = {
    "queued": frozenset({"submitting", "failed", "paused", "cancelled"}),
    "submitting": frozenset({"pending", "running", "queued", "succeeded", "failed", "cancelling", "lost"}),
    "pending": frozenset(
        {"running", "queued", "succeeded", "failed", "pausing", "cancelling", "cancelled", "lost"},
    ),
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
        },
    ),
    "succeeded": frozenset(),
    "failed": frozenset({"queued"}),
    "cancelled": frozenset({"queued"}),
}

FINAL_STATUS: Mapping[StatusReason, JobStatus] = {
    "completed": "succeeded",
    "user_cancelled": "cancelled",
    "cancelled_outside": "cancelled",
    "error": "failed",
    "out_of_memory": "failed",
    "time_limit": "failed",
    "node_failure": "failed",
    "preempted": "failed",
    "stalled": "failed",
    "rejected": "failed",
    "retries_exhausted": "failed",
}


SUSPENDED = "Suspended in Slurm"
"""How the words about a running job begin while Slurm keeps it from running. No status of its own: it has its nodes."""


class IllegalMoveError(ConflictError):
    """A move that the table does not have."""

    code = "illegal_move"


def check_move(source: JobStatus, target: JobStatus, reason: StatusReason | None) -> None:
    """Raises IllegalMoveError unless the table has the move and a terminal status comes with a reason of its own."""
    if target not in MOVES[source]:
        raise IllegalMoveError(f"a job that is {source} cannot become {target}")
    if target in TERMINAL and (reason is None or FINAL_STATUS[reason] != target):
        raise IllegalMoveError(f"{target} is not the final status of the reason {reason}")
