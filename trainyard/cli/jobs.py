"""`list`, `show` and `profile`."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from trainyard.cli.comm_check import comm_check_of, show_comm_check
from trainyard.cli.completing import complete_status
from trainyard.cli.failures import UsageError
from trainyard.cli.moments import SinceOption, UntilOption
from trainyard.cli.output import (
    age,
    clean,
    complain,
    duration,
    emit,
    emit_all,
    measured,
    number,
    say,
    size,
    status_text,
    table,
)
from trainyard.cli.session import JobArgument, JsonOption, SweepOption, client_of, find_job
from trainyard.cli.sweep import find_sweep
from trainyard.cli.watching import error_lines
from trainyard.contract.wire.jobs import JobResource


def list_jobs(
    ctx: typer.Context,
    status: Annotated[
        list[str] | None,
        typer.Option(autocompletion=complete_status, help="Only jobs with this status; can be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.")] = None,
    by: Annotated[str | None, typer.Option(metavar="USER", help="Only jobs that this person submitted.")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only jobs with this in their name, or of this id.")
    ] = None,
    sweep: SweepOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    labels: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Only jobs with it; can be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="However many there are.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: trainyard list --status running
    """
    with client_of(ctx) as client:
        handles = client.jobs(
            status=status or None,
            name=name,
            created_by=by,
            created_after=since,
            created_before=until,
            search=search,
            sweep=find_sweep(client, sweep).id if sweep else None,
            metadata=_metadata(labels or []),
            limit=None if everything else limit,
        )
        jobs = (handle.resource for handle in handles)
        if as_json:
            emit_all(jobs)
            return
        rows = [_row(job) for job in jobs]
    if rows:
        table(("JOB", "NAME", "STATUS", "STEP", "LOSS", "CREATED", "BY"), rows, spare=("BY", "CREATED", "LOSS", "STEP"))
    elif any((name, by, since, until, labels, search, sweep)):
        complain("no such jobs")
    else:
        told = f" with status {' or '.join(status)}" if status else " yet; try: trainyard submit digits_ddp --watch"
        complain(f"no jobs{told}")


def _metadata(labels: list[str]) -> dict[str, str]:
    parts = [label.partition("=") for label in labels]
    if odd := [key for key, equals, _ in parts if not equals]:
        raise UsageError(f"--metadata takes key=value, like team=nlp; not {odd[0]!r}")
    return {key: value for key, _, value in parts}


def _row(job: JobResource) -> tuple[str | Text, ...]:
    step = f"{job.progress.step}/{job.progress.total_steps}" if job.progress else "-"
    loss = number(job.metrics.get("train/loss"))
    return job.id, job.name, status_text(job.status), step, loss, age(job.created_at), job.created_by


def show(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Show one job: what it does or waits for, how far it is, and what went wrong.

    Example: trainyard show last
    """
    with client_of(ctx) as client:
        job = find_job(client, job_id)
        if as_json:
            emit(job)
            return
        found = comm_check_of(client, job)
    for label, value in _facts(job):
        say(f"{label:<12}{value}" if label else value)
    if job.error is not None and job.error.traceback:
        print(clean(job.error.traceback).rstrip())
    if found is not None:
        show_comm_check(found)


def _facts(job: JobResource) -> Iterator[tuple[str, str]]:
    reason = f" ({job.status_reason})" if job.status_reason else ""
    yield "job", job.id
    yield "name", job.name
    yield "status", f"{job.status}{reason}: {job.status_message}"
    yield "created", f"{age(job.created_at)} by {job.created_by}"
    if job.started_at is not None and job.finished_at is not None:
        yield "took", duration((job.finished_at - job.started_at).total_seconds())
    if job.progress is not None:
        yield "step", f"{job.progress.step} of {job.progress.total_steps}"
        if job.progress.eta_seconds is not None:
            yield "left", duration(job.progress.eta_seconds)
    if job.attempt is not None:
        yield "attempt", _attempt(job)
    for key, value in sorted(job.metrics.items()):
        yield "", f"  {key:<32}{measured(key, value)}"
    if job.last_checkpoint_step is not None:
        yield "checkpoint", f"step {job.last_checkpoint_step}"
    if job.origin is not None:
        yield "origin", f"step {job.origin.step} of {job.origin.job_id}"
    held = f" ({size(job.disk_bytes)})" if job.disk_bytes is not None else ""
    yield "folder", job.run_directory + held
    for line in error_lines(job):
        yield "", line


def _attempt(job: JobResource) -> str:
    attempt = job.attempt
    assert attempt is not None
    where = f" on {', '.join(attempt.nodes)}" if attempt.nodes else ""
    if attempt.scheduler_id is None and attempt.ended_at is not None:
        return f"{attempt.number}, not taken by {attempt.scheduler}"
    return f"{attempt.number}, {attempt.scheduler} job {attempt.scheduler_id or 'not known yet'}{where}"


def profile(
    ctx: typer.Context,
    job_id: JobArgument,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="How many of the next steps.")] = 3,
    rank: Annotated[list[int] | None, typer.Option(min=0, help="A rank; may be repeated. Else rank 0.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a running job for a trace of its next steps.

    Example: trainyard profile last --steps 5
    """
    with client_of(ctx) as client:
        job = client.profile(find_job(client, job_id).id, steps=steps, ranks=rank or [0])
    if as_json:
        emit(job)
    else:
        say(f"job {job.id}: a trace of {steps} step(s) is asked for; trainyard events {job.id} tells when it is there")
