"""What sbatch's answer means: accepted, clearly refused, or neither. Pure."""

import re

from service.scheduler.base import Accepted, Ambiguous, Rejected, SubmitOutcome

_ID = re.compile(r"\bjob (\d+)\b")
_REFUSALS = (
    "invalid account or account/partition combination",
    "invalid partition name specified",
    "invalid qos specification",
    "invalid feature specification",
    "invalid generic resource (gres) specification",
    "invalid node name specified",
    "invalid wckey specification",
    "invalid job constraint",
    "invalid time specification",
    "requested node configuration is not available",
    "requested time limit is invalid",
    "requested partition configuration not available now",
    "memory required by task is not available",
    "memory specification can not be satisfied",
    "node count specification invalid",
    "more processors requested than permitted",
    "job violates accounting/qos policy",
    "job submission denied by a plugin",
    "user's group not permitted to use this partition",
    "group not permitted to use this partition",
    "access/permission denied",
    "unable to open file",
)
"""sbatch's words, in lower case, after which nothing can have been queued."""


def read_answer(returncode: int, stdout: str, stderr: str) -> SubmitOutcome:
    """An id counts even beside an error: the controller had it."""
    if found := _ID.search(stdout):
        return Accepted(found[1])
    words = " ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in stderr.splitlines() if line)
    if returncode != 0 and any(refusal in stderr.lower() for refusal in _REFUSALS):
        return Rejected(f"Slurm refuses it: {words}")
    return Ambiguous(f"sbatch ended with {returncode}: {words or 'no word'}")
