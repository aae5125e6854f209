"""Differences of specs as lines of text, and the command that submits a fix. Pure functions."""

import shlex
from collections.abc import Iterator, Sequence

from trainyard.cli.output import print_line
from trainyard.contract.proposals import spec_text
from trainyard.contract.wire.jobs import Fix, JobResource, SpecChange

_MAX_VALUE = 60
"""Characters of a value in a line; `--json` has all."""


def fixes_of(job: JobResource) -> list[Fix]:
    """Return the changes that the job's failure and the advice about it propose."""
    failed = job.failure_summary.fixes if job.failure_summary is not None else []
    return [*failed, *(advice.fix for advice in job.advice if advice.fix is not None)]


def assignments(fix: Fix) -> list[str]:
    """Return the values that a fix sets, as `trainyard fix` takes them."""
    return [f"{path}={spec_text(value)}" for path, value in fix.fields.items()]


def fix_lines(job: JobResource, fix: Fix) -> Iterator[str]:
    """Yield the command that submits a fix, and below it all differences from the job's spec."""
    yield f"fix: trainyard fix {job.id} {shlex.join(assignments(fix))}"
    note = f"  ({fix.note})" if fix.note else ""
    for number, line in enumerate(change_lines(fix.changes)):
        yield f"    {line}{note if number == 0 else ''}"


def change_lines(changes: Sequence[SpecChange]) -> Iterator[str]:
    """Yield a line for each field: its path, the old and the new value."""
    width = max((len(change.field) for change in changes), default=0)
    for change in changes:
        yield f"{change.field:<{width}}  {_short(change.before)} -> {_short(change.after)}"


def print_changes(changes: Sequence[SpecChange]) -> None:
    """Print the differences of a spec that is about to be submitted."""
    for line in change_lines(changes):
        print_line(f"  {line}")


def _short(value: object) -> str:
    text = spec_text(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"
