"""Accounts for the data of a spec before it is submitted: `python -m worker.rank.data_plan` reads a request from stdin
and writes updates to stdout, one JSON object on each line."""

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.data_accounts import DataAccount, DataAccounts, DataRequest, DataUpdate
from trainyard.process_start import speed_up_imports
from worker.core.processes import die_with_parent
from worker.data.rendering import RENDERING

_PROGRESS_SECONDS = 0.5
_START_SECONDS, _END_SECONDS = 50.0, 10.0
"""Seconds for the work before the first record, such as imports, and after the last record."""
_ANY_NUMBER = 2**53
_WITH = "Accounts are made of files of texts, conversations, preferences and pairs."


class _TimeOver(BaseException):
    """The work took longer than was allowed. No handler of errors, such as a chat template's, catches it."""

    def __init__(self, template_seconds: float) -> None:
        """`template_seconds`: for how long the chat template has been writing one text."""
        super().__init__()
        self.template_seconds = template_seconds


def main() -> int:
    """Return the exit status: 0, or 1 after a failure, which is the last update."""
    # Libraries print, too, but only updates may go to the reader.
    updates = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(update: DataUpdate) -> None:
        print(update.model_dump_json(exclude_defaults=True), file=updates, flush=True)

    parent = os.getppid()
    try:
        die_with_parent(parent)
        request = DataRequest.model_validate_json(sys.stdin.buffer.read())
        if request.memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (request.memory_bytes, request.memory_bytes))
        with _time_limit(_START_SECONDS + request.seconds):
            report(account_for(request, report))
    except BrokenPipeError:
        return 1
    except _TimeOver as over:
        report(_time_over(request.seconds, over.template_seconds))
        return 1
    except MemoryError:
        report(DataUpdate(failure="reading the data needs too much memory", hint="Read fewer records (--records)."))
        return 1
    except ImportError as error:
        hint = "Install it where the data is read: pip install 'trainyard[worker,hf,data]'."
        report(DataUpdate(failure=f"a package is missing: {error}", hint=hint))
        return 1
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip().split("\n")[0]
        report(DataUpdate(failure=f"{type(error).__name__}: {text}"))
        return 1
    return 0


def _time_over(allowed: float, template_seconds: float) -> DataUpdate:
    if template_seconds > allowed / 2:
        failure = f"the model's chat template did not finish one conversation within {template_seconds:.0f} seconds"
        return DataUpdate(failure=failure, hint="Look for loops in chat_template.jinja of the model's folder.")
    failure = f"the data was not read within {allowed:g} seconds"
    return DataUpdate(failure=failure, hint="Read fewer records (--records), or allow more time (--timeout).")


def account_for(request: DataRequest, report: Callable[[DataUpdate], None]) -> DataUpdate:
    """Return the last update about the data of a spec, and report the number of records now and then."""
    from worker.core.errors import RefusedError, TrainingError
    from worker.data.model_files import remove_private_folders
    from worker.data.uploaded import UploadNames, locate_uploads

    given = parse_stored_spec(request.spec)
    if not isinstance(given.data, TextData) or given.task_kind.has_own_code:
        source = given.data.source if given.data else "none"
        return DataUpdate(failure=f"data of source `{source}` has no account", hint=_WITH)
    runs = Path(request.runs) if request.runs else Path("/nonexistent")
    names = UploadNames.of(given, runs)
    accounts: list[DataAccount] = []
    problem: str | None = None
    hint: str | None = None
    try:
        with names.in_errors():
            spec, roots = locate_uploads(given, request.roots, runs)
            _read(spec.model_copy(update={"data": _lenient(spec.data)}), roots, request, accounts, report)
    except RefusedError as error:
        problem, hint = str(error), error.hint
        if any(not account.complete for account in accounts):
            problem = f"with the records that were read: {problem}"
    except (TrainingError, ValueError, OSError) as error:
        problem, hint = f"{type(error).__name__}: {error}", getattr(error, "hint", None)
    finally:
        remove_private_folders()
    if problem is None:
        problem, hint = _bad_record_problem(given, accounts)
    elif hint is None:
        hint = _hint_of(accounts)
    return DataUpdate(result=names.resource(DataAccounts(data=accounts, problem=problem, hint=hint)))


def _read(
    spec: TrainingSpec,
    roots: AllowedRoots,
    request: DataRequest,
    accounts: list[DataAccount],
    report: Callable[[DataUpdate], None],
) -> None:
    from worker.data.read_limit import ReadLimit
    from worker.data.text_examples import DataAccess
    from worker.tasks.select import select_task

    count, reported = 0, 0.0

    def on_record() -> None:
        nonlocal count, reported
        count += 1
        if count == 1:
            signal.setitimer(signal.ITIMER_REAL, request.seconds + _END_SECONDS)
        if (now := time.monotonic()) - reported > _PROGRESS_SECONDS:
            reported = now
            report(DataUpdate(records=count))

    limit = ReadLimit(request.records, request.seconds, on_record)
    select_task(spec, DataAccess(roots, limit=limit, on_account=accounts.append))


def _lenient(data: object) -> TextData:
    """Return the section of the data such that all bad records are counted."""
    assert isinstance(data, TextData)
    return data.model_copy(update={"on_bad_line": "skip", "max_bad_lines": _ANY_NUMBER})


def _bad_record_problem(spec: TrainingSpec, accounts: list[DataAccount]) -> tuple[str | None, str | None]:
    """Return why bad records would end a job with a spec, and a hint; None if they would not."""
    data = spec.data
    assert isinstance(data, TextData)
    limit = data.max_bad_lines if data.on_bad_line == "skip" else 0
    for account in accounts:
        if account.bad_records > limit:
            is_one = account.bad_records == 1
            counted = f"{account.bad_records} record{'' if is_one else 's'} of {account.section}"
            allowed = f"more than data.max_bad_lines, which is {limit}" if limit else "which data.on_bad_line refuses"
            skip = f"set data.on_bad_line: skip{' and a larger data.max_bad_lines' * bool(limit)}"
            hint = f"{_hint_of([account]) or 'Correct them.'} To leave them out, {skip}."
            return f"{counted} {'holds' if is_one else 'hold'} no example, {allowed}", hint
    return None, None


def _hint_of(accounts: list[DataAccount]) -> str | None:
    """Return the hint for the most frequent reason for bad records; None if there is no hint."""
    reasons = [reason for account in accounts for reason in account.reasons]
    return max(reasons, key=lambda reason: reason.records).hint or None if reasons else None


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TimeOver in the block if it takes longer, so that temporary files are removed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _TimeOver(RENDERING.seconds)

    signal.signal(signal.SIGALRM, end)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    speed_up_imports()
    sys.exit(main())
