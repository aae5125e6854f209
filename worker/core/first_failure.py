"""The first failure of an execution, from the files that ranks, torchrun and nodes left."""

import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.reports import ExitReason, Failure
from worker.core.disk_space import disk_problem
from worker.core.errors import read_errors, to_failure
from worker.core.memory_hints import memory_hint
from worker.core.rank_exits import RankExit, read_rank_exits

_NOTICED_WITHIN_SECONDS = 5.0
"""torchrun notices a rank that died before its peers failed as soon as it notices them. A rank that dies later was
killed by torchrun itself, after it had waited in vain for the rank to exit."""


@dataclass(frozen=True)
class FirstFailure:
    """The cause of an execution's end; later failures of other ranks are its consequences."""

    reason: ExitReason
    failure: Failure


def find_first_failure(
    layout: AttemptLayout,
    execution: int,
    spec: TrainingSpec | None = None,
    returncode: int = 1,
    lost_nodes: Callable[[], list[str]] = list,
) -> FirstFailure:
    """Return the first failure: an error of a rank's own, else a lost node, else a killed rank, else torchrun's end.

    Args:
        spec: The run's spec, for hints about memory.
        returncode: The exit code of torchrun.
        lost_nodes: Waits for the other nodes and names those without an exit mark; called only where no rank's own
            error explains the end.
    """
    lost: list[str] = []
    if all(error.consequence for error in read_errors(layout.errors, execution)):
        lost = lost_nodes()
    # Read again: the other nodes may have written their files while this node waited.
    errors = read_errors(layout.errors, execution)
    own = next((error for error in errors if not error.consequence), None)
    if own:
        return FirstFailure(own.reason, to_failure(own))
    if lost:
        message = f"node lost: {', '.join(lost)} ended without an exit mark, and the ranks of the other nodes failed"
        failure = Failure(type="NodeVanished", message=message, node=lost[0], consequence=True)
        return FirstFailure("node_failure", failure)
    reported = {error.rank for error in errors}
    limit = min((error.time for error in errors), default=float("inf")) + _NOTICED_WITHIN_SECONDS
    exits = [end for end in read_rank_exits(layout, execution) if end.rank not in reported and end.time <= limit]
    killed = next((end for end in exits if end.exitcode < 0), None) or next(iter(exits), None)
    if not errors and (killed is None or killed.exitcode >= 0) and (problem := disk_problem(layout.root)):
        # The error files could not be written.
        failure = Failure(host=socket.gethostname(), type="OSError", message=f"{layout.root}: {problem}"[:8000])
        return FirstFailure("disk_full", failure)
    if killed:
        return _from_exit(killed, spec)
    if errors:
        return FirstFailure(errors[0].reason, to_failure(errors[0]))
    end = _signal_name(-returncode) if returncode < 0 else f"exit code {returncode}"
    message = f"torchrun ended with {end}, and no rank reported an error; launch.log has its output"
    return FirstFailure("error", Failure(host=socket.gethostname(), type="LaunchFailed", message=message))


def describe_restart(layout: AttemptLayout, execution: int, spec: TrainingSpec) -> tuple[str, dict[str, Any]]:
    """Return message and data of the event `restarted_in_place`: the failure of the previous execution."""
    first = find_first_failure(layout, execution - 1, spec)
    rank = f"rank {first.failure.rank}: " if first.failure.rank is not None else ""
    data = {"rank": first.failure.rank, "type": first.failure.type, "reason": first.reason}
    return f"torchrun restarted the ranks after {rank}{first.failure.message}", data


def _from_exit(end: RankExit, spec: TrainingSpec | None) -> FirstFailure:
    rank, host = f"rank {end.rank} (pid {end.pid})", socket.gethostname()
    if end.exitcode >= 0:
        message = f"{rank} ended with exit code {end.exitcode} without an error report"
        return FirstFailure("error", Failure(rank=end.rank, host=host, type="RankFailed", message=message))
    name = _signal_name(-end.exitcode)
    advice = memory_hint(spec, on_device=False) if spec and end.exitcode == -signal.SIGKILL else None
    if end.out_of_memory:
        message = f"{rank} was ended by {name}: the kernel counted an out-of-memory kill in this job's cgroup"
        failure = Failure(
            rank=end.rank, host=host, type=name, message=message, hint=advice, exit_code=128 - end.exitcode
        )
        return FirstFailure("out_of_memory", failure)
    hint = f"A SIGKILL of unknown origin is usually the host's out-of-memory killer. {advice}" if advice else None
    message = f"{rank} was ended by {name}"
    failure = Failure(rank=end.rank, host=host, type=name, message=message, hint=hint, exit_code=128 - end.exitcode)
    return FirstFailure("error", failure)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
