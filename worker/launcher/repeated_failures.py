"""Detects that a run failed twice in the same way, within an attempt or across attempts."""

import contextlib
import re

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import FinishRecord
from worker.core.rank_exits import read_rank_exits
from worker.core.script_failures import are_repeated
from worker.launcher.exit_record import last_step

HINT = "The program failed twice in the same way without a later step, so it was not started again."
_NAME = re.compile(r"torchrun-(\d+)-\d+\.json")


def failed_as_before(layout: AttemptLayout, execution: int) -> bool:
    """Return whether the execution failed in the same way as the previous failed execution, at no later step.

    A program that reported later steps than before is started again: its error depends on more than its code.
    Executions in between that ended without a failure, such as by preemption, do not count.
    """
    before = _previous_failure(layout, execution)
    if before is None or not are_repeated(read_rank_exits(*before), read_rank_exits(layout, execution)):
        return False
    return last_step(layout, execution) <= last_step(*before)


def stalled_as_before(layout: AttemptLayout, execution: int, type_: str) -> bool:
    """Return whether an earlier execution of the job ended with a failure of this type, and this one got no further."""
    steps = []
    for path in layout.root.parent.glob("*/finish-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record = FinishRecord.model_validate_json(path.read_bytes())
            if record.failure is not None and record.failure.type == type_ and record.execution < execution:
                steps.append(record.step)
    return bool(steps) and last_step(layout, execution) <= max(steps)


def _previous_failure(layout: AttemptLayout, execution: int) -> tuple[AttemptLayout, int] | None:
    """Return the last failed execution of the job before this execution. Their numbers increase across attempts."""
    failed = {
        int(match[1]): AttemptLayout(path.parents[1])
        for path in layout.root.parent.glob(f"*/{layout.errors.name}/torchrun-*.json")
        if (match := _NAME.fullmatch(path.name))
    }
    earlier = [number for number in failed if number < execution]
    return (failed[max(earlier)], max(earlier)) if earlier else None
