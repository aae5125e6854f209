"""What each of Slurm's job states means to us. Pure; a word that Slurm has not documented yet ends nothing."""

from typing import Literal

from service.scheduler.base import EndedAs

State = Literal["pending", "running", "ended"]

_PENDING = frozenset(
    {
        *("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
        *("CONFIGURING", "POWER_UP_NODE", "EXPEDITING", "UPDATE_DB"),
    }
)
_RUNNING = frozenset({"RUNNING", "RESIZING", "SIGNALING", "SUSPENDED", "STOPPED", "COMPLETING", "STAGE_OUT"})
_ENDED: dict[str, EndedAs] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "RECONFIG_FAIL": "failed",
    "BOOT_FAIL": "node_failure",
    "NODE_FAIL": "node_failure",
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}
"""Final for us at once: jobs are submitted with `--no-requeue`, so Slurm never brings one back under its id."""

_SUSPENDED = {
    "SUSPENDED": "suspended in Slurm (by an operator or by gang scheduling); it goes on by `scontrol resume {id}`",
    "STOPPED": "suspended in Slurm (by a SIGSTOP); it goes on by `scancel --signal=CONT {id}`",
}

KNOWN = _PENDING | _RUNNING | _ENDED.keys()


def word(text: str) -> str:
    """The state in what a command printed: `CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    first = text.split(maxsplit=1)
    return first[0].rstrip("+").upper() if first else ""


def suspended(text: str, job: str) -> str:
    """What to say of a job that has its nodes and does not run; empty for all others."""
    return _SUSPENDED.get(word(text), "").format(id=job)


def meaning(text: str) -> tuple[State, EndedAs | None]:
    """What it means; an unknown word means that it still runs, so that nothing is concluded from it."""
    found = word(text)
    if found in _ENDED:
        return "ended", _ENDED[found]
    return ("pending" if found in _PENDING else "running"), None
