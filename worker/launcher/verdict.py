"""How it ended: the finish record, which a rank wrote if it could, or what the traces say went wrong first."""

import json
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.reports import ExitReason, Failure, FinishRecord, MetricsBatch
from trainyard.contract.spool import SpoolCorruptError, parse_spool
from worker.errors import failure_of, read_errors
from worker.launcher.torchrun import ended_files

_KILLED_HINT = (
    "A SIGKILL that nobody sent is usually the host's out-of-memory killer: ask for more memory "
    "(resources.memory_gb_per_gpu) or lower batch.micro_size."
)


_NOTICED_WITHIN = 5.0
"""Seconds. A rank that died before its peers complained is noticed as soon as they are; one that dies later was killed
by torchrun itself, which had waited in vain for it to end."""


@dataclass(frozen=True)
class Ended:
    """A rank's process, as torchrun saw it end."""

    rank: int
    exitcode: int
    pid: int
    time: float
    """When torchrun noticed, in whole seconds since 1970."""


def last_execution(layout: AttemptLayout, first: int) -> int:
    """The highest execution of this attempt that began: rank 0's spool file is its first act."""
    numbers = [int(match[1]) for path in layout.spool.glob("*.jsonl") if (match := re.search(r"(\d{6})\.", path.name))]
    return max([first, *numbers, *(error.execution for error in read_errors(layout.errors))])


def settle(
    layout: AttemptLayout,
    first: int,
    returncode: int,
    *,
    killed_for: ExitReason | None,
    vanished: Callable[[], list[str]] = list,
) -> FinishRecord:
    """Read the last execution's finish record, or write it.

    Args:
        returncode: torchrun's.
        killed_for: why the launcher itself killed the ranks, where it did.
        vanished: waits for the other nodes and names those that ended without a word; asked only where no rank here
            is to blame.
    """
    execution = last_execution(layout, first)
    path = layout.finish(execution)
    if path.is_file():
        return FinishRecord.model_validate_json(path.read_bytes())
    reason, failure = (killed_for, None) if killed_for else _failure(layout, execution, returncode, vanished)
    record = FinishRecord(
        execution=execution,
        reason=reason,
        step=_last_step(layout, execution),
        failure=failure,
        restarts=execution - first,
        time=datetime.now(UTC),
    )
    write_atomic(path, record.model_dump_json())
    return record


def not_started(layout: AttemptLayout, execution: int, error: OSError) -> FinishRecord:
    """Write the record of an execution whose torchrun never ran."""
    failure = Failure(host=socket.gethostname(), type=type(error).__name__, message=f"torchrun cannot start: {error}")
    record = FinishRecord(execution=execution, reason="error", failure=failure, time=datetime.now(UTC))
    write_atomic(layout.finish(execution), record.model_dump_json())
    return record


def _failure(
    layout: AttemptLayout, execution: int, returncode: int, vanished: Callable[[], list[str]]
) -> tuple[ExitReason, Failure]:
    gone: list[str] = []
    if all(error.consequence for error in read_errors(layout.errors, execution)):
        gone = vanished()
    # The other nodes may have left their traces only by now.
    errors = read_errors(layout.errors, execution)
    own = next((error for error in errors if not error.consequence), None)
    if own:
        return own.reason, failure_of(own)
    if gone:
        message = f"{', '.join(gone)} vanished: the node's processes ended without a word, and its peers with them"
        return "node_failure", Failure(type="NodeVanished", message=message, node=gone[0], consequence=True)
    told = {error.rank for error in errors}
    first = min((error.time for error in errors), default=float("inf"))
    ended = [end for end in _ended(layout) if end.rank not in told and end.time <= first + _NOTICED_WITHIN]
    killed = next((end for end in ended if end.exitcode < 0), None) or next(iter(ended), None)
    if killed:
        return "error", _from_exit(killed)
    if errors:
        return errors[0].reason, failure_of(errors[0])
    what = _signal_name(-returncode) if returncode < 0 else f"exit code {returncode}"
    message = f"torchrun ended with {what}, and no rank left a word; launch.log has its output"
    return "error", Failure(host=socket.gethostname(), type="LaunchFailed", message=message)


def _from_exit(end: Ended) -> Failure:
    if end.exitcode < 0:
        name = _signal_name(-end.exitcode)
        message = f"rank {end.rank} (pid {end.pid}) was ended by {name}"
        hint = _KILLED_HINT if end.exitcode == -signal.SIGKILL else None
        return Failure(rank=end.rank, host=socket.gethostname(), type=name, message=message, hint=hint)
    message = f"rank {end.rank} (pid {end.pid}) ended with exit code {end.exitcode} and left no word"
    return Failure(rank=end.rank, host=socket.gethostname(), type="RankFailed", message=message)


def _ended(layout: AttemptLayout) -> list[Ended]:
    return sorted((end for path in ended_files(layout) for end in _read_ended(path)), key=lambda end: end.rank)


def _read_ended(path: Path) -> list[Ended]:
    try:
        listed = json.loads(path.read_text())
        return [
            Ended(int(item["rank"]), int(item["exitcode"]), int(item["pid"]), float(item["time"])) for item in listed
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _last_step(layout: AttemptLayout, execution: int) -> int:
    """The last step that the execution told of."""
    return _step_in(layout.spool_file(execution))


def _step_in(path: Path) -> int:
    step = 0
    try:
        for record in parse_spool(path):
            body = record.body() if record.kind == "metrics" else None
            if isinstance(body, MetricsBatch) and body.progress:
                step = body.progress.step
    except (OSError, SpoolCorruptError, ValueError):
        pass
    return step


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
