"""The end of a `script` job. Its ranks are the user's program, so the launcher writes the exit record or the errors."""

import signal
import socket
from datetime import UTC, datetime

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.wire.reports import UNNAMED_FAILURE, ExitReason, Failure, FinishRecord
from worker.core.errors import RankError, describe_foreign_error, write_error
from worker.core.rank_exits import RankExit, read_rank_exits
from worker.core.script_failures import (
    are_final,
    error_of,
    is_final,
    last_line,
    raised_before_abort,
    read_tail,
    with_tails,
)
from worker.launcher.exit_record import last_execution, last_step
from worker.launcher.repeated_failures import HINT, failed_as_before
from worker.launcher.unused import read_failure


def finalize_script(
    layout: AttemptLayout, first: int, returncode: int, reason: ExitReason | None, is_answer: bool = False
) -> None:
    """Write an exit record, or an error file for each failed rank. The ranks of a built-in task write these themselves.

    Args:
        returncode: The exit code of torchrun.
        reason: The reason of the stop request, if there was one.
        is_answer: Whether an end after the stop request is the program's answer to it.
    """
    execution = last_execution(layout, first)
    exits = read_rank_exits(layout, execution)
    stopped = is_answer and reason is not None
    if returncode == 0 and reason is None and (failure := read_failure(layout.unused)):
        # The failure became known at the end of a program that succeeded.
        _write_record(layout, first, "error", failure)
        return
    if returncode == 0 or (stopped and exits and not are_final(with_tails(layout, exits))):
        exit_reason: ExitReason = "completed"
        if stopped or layout.yielded(execution).exists():
            exit_reason = reason or "preempted"
        _write_record(layout, first, exit_reason)
        return
    repeated = failed_as_before(layout, execution)
    for rank_exit in exits:
        log_path = layout.rank_log(rank_exit.rank)
        if rank_exit.exitcode > 0 or (
            rank_exit.exitcode == -signal.SIGABRT and raised_before_abort(read_tail(log_path))
        ):
            error = _describe(layout, rank_exit, execution)
            changes = {"final": True, "hint": HINT} if repeated and not error.final else {}
            write_error(layout.rank_error(rank_exit.rank), error.model_copy(update=changes))


def _write_record(layout: AttemptLayout, first: int, reason: ExitReason, failure: Failure | None = None) -> None:
    execution = last_execution(layout, first)
    record = FinishRecord(
        execution=execution,
        reason=reason,
        step=last_step(layout, execution),
        failure=failure,
        restarts=execution - first,
        of_program=failure is None,
        time=datetime.now(UTC),
    )
    write_atomic(layout.finish(execution), record.model_dump_json())


def _describe(layout: AttemptLayout, rank_exit: RankExit, execution: int) -> RankError:
    """Return the error from torchrun's error file if the program wrote it (`@record`), else from the log's end."""
    tail = read_tail(layout.rank_log(rank_exit.rank))
    error = error_of(rank_exit, tail)
    unnamed = rank_exit.message or f"the program ended with exit code {rank_exit.exitcode}"
    if error is None and not rank_exit.message and (line := last_line(tail)):
        unnamed += f"; the last line of its output: {line}"
    return describe_foreign_error(
        error.type if error else UNNAMED_FAILURE,
        error.shown if error else unnamed,
        traceback=_shown_output(rank_exit.traceback, tail, is_hooked=bool(rank_exit.hook)),
        rank=rank_exit.rank,
        execution=execution,
        time=rank_exit.time,
        host=socket.gethostname(),
        pid=rank_exit.pid,
        exit_code=rank_exit.exitcode,
        final=is_final(error, rank_exit.exitcode, rank_exit.command, tail),
    )


def _shown_output(traceback: str, tail: str, *, is_hooked: bool) -> str:
    """Return the recorded traceback, or the end of the log, which also has the output before the traceback."""
    last = traceback.rstrip().rpartition("\n")[2].strip()
    return tail if not last or (is_hooked and last in tail) else traceback
