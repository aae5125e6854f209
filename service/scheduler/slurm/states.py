"""The meaning of Slurm's job states. Pure functions; an undocumented state never counts as ended."""

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
    "LAUNCH_FAILED": "launch_failed",
    "RECONFIG_FAIL": "launch_failed",
    "BOOT_FAIL": "launch_failed",
    "NODE_FAIL": "node_failure",
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}
"""Final states. Jobs are submitted with `--no-requeue`, so Slurm does not restart them under the same id."""

BY_CONTROLLER = "CANCELLED by slurmctld"
"""The state of a job that the controller cancelled by itself, such as after the loss of its state: a record of the
accounting without a user id. The queue never shows who cancelled a job."""

LAUNCH_FAILURES = frozenset({"0:53", "JobLaunchFailure"})
"""The exit code in the accounting, and the reason in the queue, of a job FAILED that a node could not start."""

OUT_OF_MEMORY = "0:125"
"""The exit code in the accounting of a job or step that exceeded its memory."""

_COMPLETING = (
    "Slurm is cleaning up after the job (COMPLETING): its processes have ended or are being ended. If "
    "this lasts for minutes, check the node's epilog and slurmd: `scontrol show job {id}`."
)
_SUSPENDED = {
    "SUSPENDED": "Suspended in Slurm by an operator or by gang scheduling. `scontrol resume {id}` resumes it.",
    "STOPPED": "Suspended in Slurm by SIGSTOP. `scancel --signal=CONT {id}` resumes it.",
}

DOCUMENTED = _PENDING | _RUNNING | _ENDED.keys()


def state_name(text: str) -> str:
    """The state in a command's output: CANCELLED for `CANCELLED by 1000` and for `CANCELLED+`."""
    first = text.split(maxsplit=1)
    return first[0].rstrip("+").upper() if first else ""


def failure_of(code: str, steps: str) -> EndedAs:
    """How a job FAILED, by its exit code or reason, and by the highest exit code of its steps."""
    if code in LAUNCH_FAILURES:
        return "launch_failed"
    return "out_of_memory" if steps == OUT_OF_MEMORY else "failed"


def describe_suspended(text: str, job_id: str) -> str:
    """The message for a job whose processes are stopped while it keeps its nodes; empty for other states."""
    return _SUSPENDED.get(state_name(text), "").format(id=job_id)


def describe_completing(text: str, job_id: str) -> str:
    """The message for a job whose nodes Slurm is cleaning up; empty for other states."""
    return _COMPLETING.format(id=job_id) if state_name(text) == "COMPLETING" else ""


def interpret_state(text: str) -> tuple[State, EndedAs | None]:
    """The state and, if ended, how; an unknown state counts as running, so that nothing is concluded from it."""
    name = state_name(text)
    if text == BY_CONTROLLER:
        return "ended", "dropped"
    if name in _ENDED:
        return "ended", _ENDED[name]
    return ("pending" if name in _PENDING else "running"), None
