"""`list`, `show` and `profile`."""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, get_args

import typer
from rich.text import Text

from trainyard.cli.arguments import (
    JobArgument,
    JsonOption,
    SinceOption,
    SweepOption,
    UntilOption,
    find_job,
    make_client,
)
from trainyard.cli.completion import complete_status
from trainyard.cli.errors import UsageError
from trainyard.cli.output import (
    format_age,
    format_duration,
    format_metric,
    format_number,
    format_size,
    print_error,
    print_json,
    print_json_lines,
    print_line,
    print_table,
    sanitize,
    status_text,
)
from trainyard.cli.sweep import find_sweep
from trainyard.cli.watch import error_lines, export_suggestion
from trainyard.client import Client
from trainyard.contract.loss_metric import ENGINE_LOSS
from trainyard.contract.wire.jobs import JobResource, JobStatus
from trainyard.contract.wire.worker_events import WORKER_PREFIX

ParamOption = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Only jobs that reported this, like lr=3e-4; repeatable."),
]


def list_jobs(
    ctx: typer.Context,
    status: Annotated[
        list[str] | None,
        typer.Option(autocompletion=complete_status, help="Only jobs with this status; can be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs with this name.")] = None,
    by: Annotated[str | None, typer.Option(metavar="USER", help="Only jobs of this user.")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only jobs whose name contains this, or with this id.")
    ] = None,
    sweep: SweepOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="Only jobs with this label; can be repeated."),
    ] = None,
    parameters: ParamOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number, newest first.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="List all.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: trainyard list --status running
    """
    for value in status or ():
        _require_status(value)
    with make_client(ctx) as client:
        handles = client.jobs(
            status=status or None,
            name=name,
            created_by=by,
            created_after=since,
            created_before=until,
            search=search,
            sweep=find_sweep(client, sweep).id if sweep else None,
            metadata=_pairs("--metadata", labels or [], "team=nlp"),
            parameters=_pairs("--param", parameters or [], "lr=3e-4"),
            limit=None if everything else limit,
        )
        jobs = (handle.resource for handle in handles)
        if as_json:
            print_json_lines(jobs)
            return
        rows = [_row(job) for job in jobs]
    filtered = any((name, by, since, until, labels, parameters, search, sweep))
    _print_jobs(rows, status, filtered=filtered)


def _require_status(value: str) -> None:
    statuses = get_args(JobStatus)
    if value not in statuses:
        near = get_close_matches(value, statuses, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"--status: there is no status {value!r}; {meant}statuses: {', '.join(statuses)}")


def _print_jobs(rows: list[tuple[str | Text, ...]], status: list[str] | None, *, filtered: bool) -> None:
    if rows:
        headings = ("JOB", "NAME", "STATUS", "STEP", "LOSS", "CREATED", "BY")
        print_table(headings, rows, optional=("BY", "CREATED", "LOSS", "STEP"))
    elif filtered:
        print_error("no matching jobs")
    else:
        suffix = f" with status {' or '.join(status)}" if status else " yet; try: trainyard submit digits_ddp --watch"
        print_error(f"no jobs{suffix}")


def _pairs(option: str, texts: list[str], example: str) -> dict[str, str]:
    parts = [text.partition("=") for text in texts]
    if odd := [key for key, equals, _ in parts if not equals]:
        raise UsageError(f"{option} takes key=value, like {example}; not {odd[0]!r}")
    return {key: value for key, _, value in parts}


def _row(job: JobResource) -> tuple[str | Text, ...]:
    step = job.progress.step_text() if job.progress else "-"
    loss = format_number(job.metrics.get(job.loss_metric or ENGINE_LOSS))
    return job.id, job.name, status_text(job.status), step, loss, format_age(job.created_at), job.created_by


def show(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Show one job: status, progress, metrics and errors.

    Example: trainyard show last
    """
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        if as_json:
            print_json(job)
            return
        result = comm_check_result(client, job)
    for label, value in _facts(job):
        print_line(f"{label:<12}{value}" if label else value)
    if job.error is not None and job.error.traceback:
        print(sanitize(job.error.traceback).rstrip())
    if result is not None:
        print_comm_check(result)


def _facts(job: JobResource) -> Iterator[tuple[str, str]]:
    reason = f" ({job.status_reason})" if job.status_reason else ""
    yield "job", job.id
    yield "name", job.name
    yield "status", f"{job.status}{reason}: {job.status_message}"
    yield "created", f"{format_age(job.created_at)} by {job.created_by}"
    if commit := _commit(job.metadata):
        yield "commit", commit
    if job.started_at is not None and job.finished_at is not None:
        yield "runtime", format_duration((job.finished_at - job.started_at).total_seconds())
    if job.progress is not None:
        yield "step", job.progress.step_text(" of ")
        if job.progress.eta_seconds is not None:
            yield "ETA", format_duration(job.progress.eta_seconds)
    if job.attempt is not None:
        yield "attempt", _attempt(job)
    for key, value in sorted(job.metrics.items()):
        yield "", f"  {key:<32}{format_metric(key, value)}"
    yield from _reported(job)
    if job.last_checkpoint_step is not None:
        yield "checkpoint", f"step {job.last_checkpoint_step}{export_suggestion(job)}"
    if job.origin is not None:
        yield "origin", f"step {job.origin.step} of {job.origin.job_id}"
    disk = f" ({format_size(job.disk_bytes)})" if job.disk_bytes is not None else ""
    yield "folder", job.run_directory + disk
    for line in error_lines(job):
        yield "", line


def _commit(labels: Mapping[str, str]) -> str:
    """Return the commit, the branch and whether there were changes, as `trainyard run` recorded them."""
    if not labels.get("git_commit"):
        return ""
    branch = f" on {labels['git_branch']}" if labels.get("git_branch") else ""
    changes = ", with uncommitted changes" if labels.get("git_dirty") == "yes" else ""
    return f"{labels['git_commit']}{branch}{changes}"


def _reported(job: JobResource) -> Iterator[tuple[str, str]]:
    """Yield the parameters, tags and notes that the program reported."""
    for title, values in (("parameters", job.parameters), ("tags", job.tags)):
        if values:
            yield title, ""
        for name, value in sorted(values.items()):
            yield "", f"  {name:<32}{value if isinstance(value, str) else json.dumps(value)}"
    if job.notes:
        yield "notes", job.notes


def _attempt(job: JobResource) -> str:
    attempt = job.attempt
    assert attempt is not None
    where = f" on {', '.join(attempt.nodes)}" if attempt.nodes else ""
    if attempt.scheduler_id is None and attempt.ended_at is not None:
        return f"{attempt.number}, not accepted by {attempt.scheduler}"
    return f"{attempt.number}, {attempt.scheduler} job {attempt.scheduler_id or 'unknown'}{where}"


def profile(
    ctx: typer.Context,
    job_id: JobArgument,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Number of steps to trace.")] = 3,
    rank: Annotated[list[int] | None, typer.Option(min=0, help="Rank to trace; can be repeated. Default: 0.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Request a profiler trace of a running job's next steps.

    Example: trainyard profile last --steps 5
    """
    with make_client(ctx) as client:
        job = client.profile(find_job(client, job_id).id, steps=steps, ranks=rank or [0])
    if as_json:
        print_json(job)
    else:
        print_line(f"job {job.id}: trace of {steps} step(s) requested; see: trainyard events {job.id}")


def comm_check_result(client: Client, job: JobResource) -> Mapping[str, Any] | None:
    """Return the result of the newest communication check; None before one exists, and for jobs of other tasks."""
    if job.spec.get("task") != "comm_check":
        return None
    result = [event.data for event in client.events(job.id) if event.type == f"{WORKER_PREFIX}comm_check"]
    return result[-1] if result else None


def print_comm_check(result: Mapping[str, Any]) -> None:
    """Print the results for all ranks; the artifact also has those of groups and pairs."""
    rows = [row for row in result.get("operations", ()) if isinstance(row, dict)]
    print_table(("OPERATION", "MESSAGE", "TIME", "BUS BANDWIDTH"), [_operation_row(row) for row in rows])
    slow = result.get("slowest_pair")
    if isinstance(slow, dict):
        print_line(f"slowest pair: {slow.get('group')}, {_rate(slow)} at {format_size(int(slow.get('size_bytes', 0)))}")
    for group, operations in result.get("not_in_backend", {}).items():
        print_line(f"not in backend {result.get('backend')} ({group}): {', '.join(operations)}")
    print_line("groups and pairs: trainyard artifacts JOB --download comm_check.json")


def _operation_row(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    bytes_ = int(row.get("size_bytes", 0))
    seconds = float(row.get("seconds", 0))
    time = f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
    return str(row.get("operation", "")), format_size(bytes_) if bytes_ else "-", time, _rate(row)


def _rate(row: Mapping[str, Any]) -> str:
    rate = row.get("bus_bytes_per_second")
    return "-" if rate is None else f"{float(rate) / 1e9:.3g} GB/s"
