"""The exit record of an execution: read if a rank wrote it, else written from the first failure."""

import logging
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.reports import NODE_NOT_READY, ExitReason, Failure, FinishRecord, MetricsBatch
from trainyard.contract.wire.spool import SpoolCorruptError, parse_spool
from worker.core.errors import read_errors
from worker.core.first_failure import find_first_failure

log = logging.getLogger(__name__)


def last_execution(layout: AttemptLayout, first: int) -> int:
    """Return the highest execution of this attempt that began; rank 0 creates its spool file first of all."""
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
    """Return the exit record of the last execution; write it if no rank did.

    Args:
        first: The first execution of this attempt.
        returncode: The exit code of torchrun.
        killed_for: Why the launcher itself killed the ranks, if it did.
        failure: The failure in that case, if it is known.
        spec: The run's spec, for hints.
        lost_nodes: Waits for the other nodes and names those without an exit mark; called only where no rank's own
            error explains the end.
    """
    execution = last_execution(layout, first)
    path = layout.finish(execution)
    if path.is_file():
        return FinishRecord.model_validate_json(path.read_bytes())
    reason = killed_for
    if reason is None:
        cause = find_first_failure(layout, execution, spec, returncode, lost_nodes)
        reason, failure = cause.reason, cause.failure
    record = FinishRecord(
        execution=execution,
        reason=reason,
        step=last_step(layout, execution),
        failure=failure,
        restarts=execution - first,
        time=datetime.now(UTC),
    )
    return write_record(layout, record)


def not_started(
    layout: AttemptLayout, execution: int, message: str, *, type_: str, reason: ExitReason = "error"
) -> FinishRecord:
    """Write the record of an execution that did not start, but may start in another attempt."""
    failure = Failure(host=socket.gethostname(), type=type_, message=message)
    record = FinishRecord(execution=execution, reason=reason, failure=failure, time=datetime.now(UTC))
    return write_record(layout, record)


def rejected(layout: AttemptLayout, execution: int, message: str, *, type_: str = "Refused") -> FinishRecord:
    """Write the record of an execution that can run neither here nor in another attempt."""
    failure = Failure(host=socket.gethostname(), type=type_, message=message, final=True)
    record = FinishRecord(execution=execution, reason="rejected", failure=failure, time=datetime.now(UTC))
    return write_record(layout, record)


def node_not_ready(layout: AttemptLayout, execution: int, node: str, problem: str) -> FinishRecord:
    """Write the record of an execution that did not start because of its node; the next attempt avoids the node."""
    message = f"did not start on node {node}: {problem}"
    failure = Failure(host=socket.gethostname(), type=NODE_NOT_READY, message=message, node=node)
    record = FinishRecord(execution=execution, reason="node_failure", failure=failure, time=datetime.now(UTC))
    return write_record(layout, record)


def write_record(layout: AttemptLayout, record: FinishRecord) -> FinishRecord:
    """Write the record atomically and return it. On a full disk it can still be sent to the service."""
    try:
        write_atomic(layout.finish(record.execution), record.model_dump_json())
    except OSError as error:
        log.error("the exit record cannot be written: %s", error)
    return record


def last_step(layout: AttemptLayout, execution: int) -> int:
    """Return the last step in the execution's spools; 0 if there is none. The program's own report counts first."""
    paths = [layout.spool_file(execution), *sorted(layout.spool.glob(f"execution-{execution:06d}.node-*.jsonl"))]
    return next((step for path in paths if (step := _last_step_in(path))), 0)


def _last_step_in(path: Path) -> int:
    step = 0
    try:
        for record in parse_spool(path):
            body = record.body() if record.kind == "metrics" else None
            if isinstance(body, MetricsBatch) and body.progress:
                step = body.progress.step
    except (OSError, SpoolCorruptError, ValueError):
        pass
    return step
