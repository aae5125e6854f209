"""How it ended: the finish record, which a rank wrote if it could, or what the traces say went wrong first."""

import json
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.reports import ExitReason, Failure, FinishRecord, MetricsBatch
from trainyard.contract.wire.spool import SpoolCorruptError, parse_spool
from worker.core.errors import read_errors, to_failure
from worker.core.memory_hints import memory_hint
from worker.core.rank_exits import rank_exits_files

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
    out_of_memory: bool = False
    """The kernel counted a kill for want of memory."""


@dataclass(frozen=True)
class FirstFailure:
    """What went wrong first in an execution."""

    reason: ExitReason
    failure: Failure


def last_execution(layout: AttemptLayout, first: int) -> int:
    """The highest execution of this attempt that began: rank 0's spool file is its first act."""
    numbers = [int(match[1]) for path in layout.spool.glob("*.jsonl") if (match := re.search(r"(\d{6})\.", path.name))]
    return max([first, *numbers, *(error.execution for error in read_errors(layout.errors))])


def finalize(
    layout: AttemptLayout,
    first: int,
    returncode: int,
    *,
    killed_for: ExitReason | None,
    failure: Failure | None = None,
    spec: TrainingSpec | None = None,
    lost_nodes: Callable[[], list[str]] = list,
) -> FinishRecord:
    """Read the last execution's finish record, or write it.

    Args:
        returncode: torchrun's.
        killed_for: why the launcher itself killed the ranks, where it did.
        failure: what went wrong then, where that is known.
        spec: the run's, from which the hints come.
        vanished: waits for the other nodes and names those that ended without a word; asked only where no rank here
            is to blame.
    """
    execution = last_execution(layout, first)
    path = layout.finish(execution)
    if path.is_file():
        return FinishRecord.model_validate_json(path.read_bytes())
    reason = killed_for
    if reason is None:
        wrong = find_first_failure(layout, execution, spec, returncode, lost_nodes)
        reason, failure = wrong.reason, wrong.failure
    record = FinishRecord(
        execution=execution,
        reason=reason,
        step=last_step(layout, execution),
        failure=failure,
        restarts=execution - first,
        time=datetime.now(UTC),
    )
    return _written(layout, record)


def torchrun_not_started(layout: AttemptLayout, execution: int, error: OSError) -> FinishRecord:
    """Write the record of an execution whose torchrun never ran."""
    failure = Failure(host=socket.gethostname(), type=type(error).__name__, message=f"torchrun cannot start: {error}")
    return _written(layout, FinishRecord(execution=execution, reason="error", failure=failure, time=datetime.now(UTC)))


def refused(layout: AttemptLayout, execution: int, why: str) -> FinishRecord:
    """Write the record of an execution that this node cannot run."""
    failure = Failure(host=socket.gethostname(), type="Refused", message=why, final=True)
    return _written(
        layout, FinishRecord(execution=execution, reason="rejected", failure=failure, time=datetime.now(UTC))
    )


def _written(layout: AttemptLayout, record: FinishRecord) -> FinishRecord:
    write_atomic(layout.finish(record.execution), record.model_dump_json())
    return record


def find_first_failure(
    layout: AttemptLayout,
    execution: int,
    spec: TrainingSpec | None = None,
    returncode: int = 1,
    lost_nodes: Callable[[], list[str]] = list,
) -> FirstFailure:
    """The first thing that did, from what the ranks and torchrun left behind."""
    gone: list[str] = []
    if all(error.consequence for error in read_errors(layout.errors, execution)):
        gone = lost_nodes()
    # The other nodes may have left their traces only by now.
    errors = read_errors(layout.errors, execution)
    own = next((error for error in errors if not error.consequence), None)
    if own:
        return FirstFailure(own.reason, to_failure(own))
    if gone:
        message = f"{', '.join(gone)} vanished: the node's processes ended without a word, and its peers with them"
        failure = Failure(type="NodeVanished", message=message, node=gone[0], consequence=True)
        return FirstFailure("node_failure", failure)
    told = {error.rank for error in errors}
    first = min((error.time for error in errors), default=float("inf"))
    ended = [end for end in _ended(layout, execution) if end.rank not in told and end.time <= first + _NOTICED_WITHIN]
    killed = next((end for end in ended if end.exitcode < 0), None) or next(iter(ended), None)
    if killed:
        return _from_exit(killed, spec)
    if errors:
        return FirstFailure(errors[0].reason, to_failure(errors[0]))
    what = _signal_name(-returncode) if returncode < 0 else f"exit code {returncode}"
    message = f"torchrun ended with {what}, and no rank left a word; launch.log has its output"
    return FirstFailure("error", Failure(host=socket.gethostname(), type="LaunchFailed", message=message))


def describe_restart(layout: AttemptLayout, execution: int, spec: TrainingSpec) -> tuple[str, dict[str, Any]]:
    """Why torchrun made this execution out of the one before: a line and its data, for the job's history."""
    lost = find_first_failure(layout, execution - 1, spec)
    who = f"rank {lost.failure.rank}: " if lost.failure.rank is not None else ""
    data = {"rank": lost.failure.rank, "type": lost.failure.type, "reason": lost.reason}
    return f"torchrun started the ranks again, after {who}{lost.failure.message}", data


def _from_exit(end: Ended, spec: TrainingSpec | None) -> FirstFailure:
    who, host = f"rank {end.rank} (pid {end.pid})", socket.gethostname()
    if end.exitcode >= 0:
        message = f"{who} ended with exit code {end.exitcode} and left no word"
        return FirstFailure("error", Failure(rank=end.rank, host=host, type="RankFailed", message=message))
    name = _signal_name(-end.exitcode)
    advice = memory_hint(spec, on_device=False) if spec and end.exitcode == -signal.SIGKILL else None
    if end.out_of_memory:
        message = f"{who} was ended by {name}: the kernel's out-of-memory killer counted a kill in this job's group"
        return FirstFailure("out_of_memory", Failure(rank=end.rank, host=host, type=name, message=message, hint=advice))
    hint = f"A SIGKILL that nobody sent is usually the host's out-of-memory killer. {advice}" if advice else None
    failure = Failure(rank=end.rank, host=host, type=name, message=f"{who} was ended by {name}", hint=hint)
    return FirstFailure("error", failure)


def _ended(layout: AttemptLayout, execution: int) -> list[Ended]:
    return sorted(
        (end for path in rank_exits_files(layout, execution) for end in _read_ended(path)), key=lambda end: end.rank
    )


def _read_ended(path: Path) -> list[Ended]:
    try:
        listed = json.loads(path.read_text())
        return [
            Ended(
                int(item["rank"]),
                int(item["exitcode"]),
                int(item["pid"]),
                float(item["time"]),
                bool(item.get("out_of_memory")),
            )
            for item in listed
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def last_step(layout: AttemptLayout, execution: int) -> int:
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
