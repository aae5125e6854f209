"""`show` and `profile`: the facts about a job, and a request for a profiler trace."""

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from trainyard.cli.arguments import JobArgument, JsonOption, find_job, make_client
from trainyard.cli.output import (
    format_age,
    format_duration,
    format_metric,
    print_json,
    print_line,
    print_table,
    sanitize,
)
from trainyard.cli.spec_changes import fix_lines
from trainyard.cli.watch import error_lines, export_hint
from trainyard.client import Client
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.node_lists import shorten
from trainyard.contract.runtime import runtime_seconds
from trainyard.contract.sizes import format_size
from trainyard.contract.spec.prerequisites import prerequisites_of
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.lineage import JobLineage, MadeVersion, RelatedDependency, RelatedJob
from trainyard.contract.wire.worker_events import WORKER_PREFIX

_MAX_VALUES = 40
"""The most labels, parameters and tags of each kind that are printed; trainers report hundreds."""


def show(
    ctx: typer.Context,
    job_id: JobArgument,
    traceback: Annotated[bool, typer.Option("--traceback", help="Also print the whole traceback of an error.")] = False,
    lineage: Annotated[
        bool, typer.Option("--lineage", help="Show where it comes from, and what was made of it, instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one job: status, progress, metrics and errors.

    Example: trainyard show last
    """
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        if lineage:
            origins = client.lineage(job.id)
            if as_json:
                print_json(origins)
            else:
                for line in lineage_lines(origins, job.name):
                    print_line(line)
            return
        if as_json:
            print_json(job)
            return
        result = comm_check_result(client, job)
    for label, value in _facts(job):
        print_line(f"{label:<12}{value}" if label else value)
    if job.error is not None and job.error.traceback:
        if traceback or job.failure_summary is None:
            print(sanitize(job.error.traceback).rstrip())
        elif job.failure_summary.is_traceback:
            print_line(f"the whole traceback: trainyard show {job.id} --traceback")
    if result is not None:
        print_comm_check(result)


def _facts(job: JobResource) -> Iterator[tuple[str, str]]:
    reason = f" ({job.status_reason})" if job.status_reason else ""
    yield "job", job.id
    yield "name", f"{job.name}{' (archived)' if job.archived else ''}"
    yield "status", f"{job.status}{reason}: {job.status_message}"
    if after := prerequisites_of(job.spec.get("after", ())):
        yield "after", ", ".join(f"{one.job_id}{' (any end)' if one.any_end else ''}" for one in after)
    if argv := job.spec.get("argv"):
        yield "program", shlex.join(argv)
    yield "created", f"{format_age(job.created_at)} by {job.created_by}"
    if commit := _commit(job.metadata):
        yield "commit", commit
    if (runtime := runtime_seconds(job.started_at, job.finished_at, datetime.now(UTC))) is not None:
        yield "runtime", format_duration(runtime)
    if job.project:
        yield "project", job.project
    if job.progress is not None:
        yield "step", job.progress.step_text(" of ")
        if job.progress.phase not in (None, "training"):
            done = f" {job.progress.phase_done} of {job.progress.phase_total}" if job.progress.phase_total else ""
            yield "phase", f"{job.progress.phase}{done}"
        if job.progress.eta_seconds is not None:
            yield "ETA", format_duration(job.progress.eta_seconds)
    for advice in job.advice:
        yield "advice", advice.message
        if advice.fix is not None:
            yield from (("", line) for line in fix_lines(job, advice.fix))
    if job.attempt is not None:
        yield "attempt", _attempt(job)
    for key, value in sorted(job.metrics.items()):
        yield "", f"  {key:<31} {format_metric(key, value)}"
    if job.last_checkpoint_step is not None:
        yield "checkpoint", f"step {job.last_checkpoint_step}{export_hint(job)}"
    if job.origin is not None:
        yield "origin", f"step {job.origin.step} of {job.origin.job_id}"
    disk = f" ({format_size(job.disk_bytes)})" if job.disk_bytes is not None else ""
    yield "folder", job.run_directory + disk
    for line in error_lines(job):
        yield "", line
    yield from _reported(job)


def _commit(labels: Mapping[str, str]) -> str:
    """Return the commit, the branch and whether there were changes, as `trainyard run` recorded them."""
    if not labels.get("git_commit"):
        return ""
    branch = f" on {labels['git_branch']}" if labels.get("git_branch") else ""
    changes = ", with uncommitted changes" if labels.get("git_dirty") == "yes" else ""
    return f"{labels['git_commit']}{branch}{changes}"


def _reported(job: JobResource) -> Iterator[tuple[str, str]]:
    """Yield the metadata, parameters, tags and notes."""
    for title, values in (("metadata", job.metadata), ("parameters", job.parameters), ("tags", job.tags)):
        if values:
            yield title, ""
        for name, value in sorted(values.items())[:_MAX_VALUES]:
            yield "", f"  {name:<31} {value if isinstance(value, str) else json.dumps(value)}"
        if (more := len(values) - _MAX_VALUES) > 0:
            yield "", f"  {more} more: trainyard show {job.id} --json"
    if job.notes:
        for number, line in enumerate(job.notes.splitlines()):
            yield "notes" if number == 0 else " ", line


def _attempt(job: JobResource) -> str:
    attempt = job.attempt
    assert attempt is not None
    where = f" on {shorten(attempt.nodes)}" if attempt.nodes else ""
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
    """Return the result of the newest communication check; None before the first, and for jobs of other tasks."""
    if not task_kind(job.spec.get("task")).tests_communication:
        return None
    result = [event.data for event in client.events(job.id) if event.type == f"{WORKER_PREFIX}comm_check"]
    return result[-1] if result else None


def print_comm_check(result: Mapping[str, Any]) -> None:
    """Print the results for all ranks; the artifact also has results of groups and pairs."""
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


def lineage_lines(lineage: JobLineage, name: str) -> Iterator[str]:
    """Yield the ancestors of a job from the oldest on, the job with its data and models, and its forks. Pure."""
    depth = 0
    for ancestor in reversed(lineage.ancestors):
        yield _indented(depth, _job(ancestor))
        depth += 1
    yield _indented(depth, f"{name}  {lineage.job_id}  (this job)")
    for prerequisite in lineage.prerequisites:
        yield _indented(depth + 1, f"after: {_dependency(prerequisite)}")
    for version in lineage.base_versions:
        yield _indented(depth + 1, f"base: {_version(version)}")
    if lineage.base:
        yield _indented(depth + 1, f"base: {lineage.base}")
    if lineage.sweep_id:
        yield _indented(depth + 1, f"sweep: {lineage.sweep_id}")
    for data in lineage.data:
        named = f" ({data.file_name})" if data.file_name else ""
        yield _indented(depth + 1, f"{data.field}: {data.text}{named}")
    for version in lineage.versions:
        yield _indented(depth + 1, f"model: {_version(version)}")
    for fork in lineage.forks:
        yield _indented(depth + 1, f"fork: {_job(fork)}")
    if lineage.has_more_forks:
        yield _indented(depth + 1, "… and more forks")

    for dependent in lineage.dependents:
        yield _indented(depth + 1, f"before: {_dependency(dependent)}")
    if lineage.has_more_dependents:
        yield _indented(depth + 1, "… and more jobs that wait for it")


def _dependency(job: RelatedDependency) -> str:
    name = job.name or "deleted or not visible"
    return f"{name}  {job.job_id}  ({'any end' if job.any_end else 'success'}{f', {job.status}' if job.status else ''})"


def _indented(depth: int, text: str) -> str:
    return f"{'  ' * depth}{text}"


def _job(job: RelatedJob) -> str:
    state = f", {job.status}" if job.status else ""
    start = "without its checkpoint" if job.step is None else f"from step {job.step}"
    return f"{job.name or 'deleted or not visible'}  {job.job_id}  ({start}{state})"


def _version(version: MadeVersion) -> str:
    return f"{version.model}@{version.version}" + ("" if version.step is None else f", step {version.step}")
