"""`list`: the table of jobs, by a query, in any order, with any columns."""

import csv
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, get_args

import typer

from trainyard.cli.arguments import JsonOption, SinceOption, SweepOption, UntilOption, find_sweep, make_client
from trainyard.cli.completion import complete_status
from trainyard.cli.errors import UsageError
from trainyard.cli.output import (
    StatusText,
    format_age,
    format_duration,
    format_metric,
    format_number,
    format_value,
    one_line,
    print_error,
    print_json_lines,
    print_table,
    print_text,
    short_ids,
)
from trainyard.client import Client
from trainyard.contract.job_query import split_keys
from trainyard.contract.loss_metric import ENGINE_LOSS
from trainyard.contract.runtime import runtime_seconds
from trainyard.contract.wire.jobs import JobResource, JobStatus
from trainyard.contract.wire.sweeps import SweepDetail

ParamOption = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Only jobs that reported this, like lr=3e-4; repeatable."),
]
WhereOption = Annotated[
    str | None,
    typer.Option(metavar="QUERY", help='A query, like: optimizer.lr < 1e-3 and eval/loss < 2 and tag = "best".'),
]
SortOption = Annotated[
    str | None, typer.Option(metavar="KEY", help="Order by a field, parameter or metric; -KEY: descending.")
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY[,KEY...]", help="Show these fields, parameters or metrics; can be repeated."),
]
ViewOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Query, order and columns of a saved view; options replace them.")
]
StatusOption = Annotated[
    list[str] | None,
    typer.Option(autocompletion=complete_status, help="Only jobs with this status; can be repeated."),
]
NameOption = Annotated[str | None, typer.Option(help="Only jobs with this name.")]
ByOption = Annotated[str | None, typer.Option(metavar="USER", help="Only jobs of this user.")]
SearchOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only jobs whose name or owner contains this, or with this id.")
]
ProjectOption = Annotated[str | None, typer.Option(help="Only jobs of this project.")]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Only jobs with this label; can be repeated."),
]
ArchivedOption = Annotated[str, typer.Option(metavar="no|only|all", help="Whether to list archived jobs.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of jobs.")]
AllOption = Annotated[bool, typer.Option("--all", help="List all.")]
IdsOption = Annotated[bool, typer.Option("--ids", "-q", help="Print whole ids only, for other commands.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")]
_DEFAULT_COLUMNS = ("status", "user", "created")


def list_jobs(
    ctx: typer.Context,
    where: WhereOption = None,
    sort: SortOption = None,
    columns: ColumnsOption = None,
    view: ViewOption = None,
    status: StatusOption = None,
    name: NameOption = None,
    by: ByOption = None,
    project: ProjectOption = None,
    search: SearchOption = None,
    sweep: SweepOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    labels: LabelsOption = None,
    parameters: ParamOption = None,
    archived: ArchivedOption = "no",
    limit: LimitOption = 20,
    everything: AllOption = False,
    ids: IdsOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first or in any order.

    Example: trainyard list --where "optimizer.lr < 1e-3" --sort eval/loss --columns optimizer.lr,eval/loss
    """
    _check(status, archived, (ids, as_csv, as_json))
    filters: dict[str, Any] = {"status": status or None, "name": name, "created_by": by, "search": search}
    filters |= {"created_after": since, "created_before": until} | _pair_filters(labels or [], parameters or [])
    filters |= {"archived": None if archived == "no" else archived, "limit": None if everything else limit}
    keys = [key for text in columns or () for key in split_keys(text)]
    with make_client(ctx) as client:
        where, sort, keys = _from_view(client, view, where, sort, keys)
        shown = keys or (list(_DEFAULT_COLUMNS) if as_csv else [])
        detail = find_sweep(client, sweep) if sweep else None
        filters |= {"project": project, "sweep": detail.id if detail else None}
        jobs = (handle.resource for handle in client.jobs(where=where, sort=sort, columns=shown, **filters))
        if as_json:
            print_json_lines(jobs)
            return
        rows = list(jobs)
    if ids:
        print_text("".join(f"{job.id}\n" for job in rows))
    elif as_csv:
        _print_csv(rows, shown)
    elif rows:
        _print_jobs(rows, keys, detail)
    else:
        _print_none(status, filtered=any([where, *(filters[name] for name in filters.keys() - {"status", "limit"})]))


def _check(status: list[str] | None, archived: str, forms: Sequence[bool]) -> None:
    for value in status or ():
        _require_status(value)
    if archived not in ("no", "only", "all"):
        raise UsageError(f"--archived: no, only or all; not {archived!r}")
    if sum(forms) > 1:
        raise UsageError("give one of --ids, --csv and --json")


def _from_view(
    client: Client, name: str | None, where: str | None, sort: str | None, keys: list[str]
) -> tuple[str | None, str | None, list[str]]:
    """Return query, order and columns: the arguments where given, else the view's."""
    if name is None:
        return where, sort, keys
    view = client.view(name)
    return where or view.where or None, sort or view.sort or None, keys or list(view.columns)


def _require_status(value: str) -> None:
    statuses = get_args(JobStatus)
    if value not in statuses:
        near = get_close_matches(value, statuses, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"--status: there is no status {value!r}; {meant}statuses: {', '.join(statuses)}")


def _print_jobs(rows: Sequence[JobResource], keys: Sequence[str], sweep: SweepDetail | None) -> None:
    if keys:
        _print_columns(rows, keys)
    else:
        _print_default_columns(rows, sweep)


def _print_columns(rows: Sequence[JobResource], keys: Sequence[str]) -> None:
    short = short_ids([job.id for job in rows])
    own = [key for key in keys if key not in ("id", "name")]
    print_table(("JOB", "NAME", *own), [(short[job.id], job.name, *(_cell(job, key) for key in own)) for job in rows])


def _print_default_columns(rows: Sequence[JobResource], sweep: SweepDetail | None) -> None:
    """Print jobs with the values that the sweep changes, or without `sweep` with the sweeps of jobs, if any."""
    short = short_ids([job.id for job in rows])
    fields = sweep.fields if sweep else []
    values = {member.job_id: member.values for member in sweep.members} if sweep else {}
    sweeps = [] if sweep else [job.sweep_id for job in rows if job.sweep_id]
    short_sweeps = short_ids(sweeps)
    table: list[tuple[str, ...]] = []
    for job in rows:
        id_, name, *rest = _row(job, short[job.id])
        own = [format_value(values.get(job.id, {}).get(field, "-")) for field in fields]
        shown_sweep = [short_sweeps.get(job.sweep_id or "", "-")] if sweeps else []
        table.append((id_, name, *own, *shown_sweep, *rest))
    headings = ("JOB", "NAME", *fields, *(("SWEEP",) if sweeps else ()))
    optional = ("BY", "TRAIN LOSS", "STEP", "CREATED")
    print_table((*headings, "STATUS", "STEP", "TRAIN LOSS", "CREATED", "BY"), table, optional=optional)


def _print_none(status: list[str] | None, *, filtered: bool) -> None:
    if filtered:
        print_error("no matching jobs")
    else:
        suffix = f" with status {' or '.join(status)}" if status else " yet; try: trainyard submit digits_ddp --watch"
        print_error(f"no jobs{suffix}")


def _pair_filters(labels: list[str], parameters: list[str]) -> dict[str, dict[str, str]]:
    metadata = _pairs("--metadata", labels, "team=nlp")
    return {"metadata": metadata, "parameters": _pairs("--param", parameters, "lr=3e-4")}


def _pairs(option: str, texts: list[str], example: str) -> dict[str, str]:
    parts = [text.partition("=") for text in texts]
    if odd := [key for key, equals, _ in parts if not equals]:
        raise UsageError(f"{option} takes key=value, like {example}; not {odd[0]!r}")
    return {key: value for key, _, value in parts}


def _row(job: JobResource, shown_id: str) -> tuple[str, ...]:
    step = job.progress.step_text() if job.progress else "-"
    loss = format_number(job.metrics.get(job.loss_metric or ENGINE_LOSS))
    waits = " (after)" if job.condition and job.condition.code.startswith("after") else ""
    return shown_id, job.name, StatusText(job.status + waits), step, loss, format_age(job.created_at), job.created_by


def _cell(job: JobResource, key: str) -> str:
    """Return the displayed value of a column."""
    if key == "runtime":  # only jobs that have ended have a stored value
        runtime = runtime_seconds(job.started_at, job.finished_at, datetime.now(UTC))
        return "-" if runtime is None else format_duration(runtime)
    value = (job.values or {}).get(key)
    if value is None:
        return "-"
    if key == "status":
        return StatusText(str(value))
    if key in ("created", "created_at"):
        return format_age(job.created_at)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else format_metric(key, value)


def _print_csv(jobs: Sequence[JobResource], keys: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["id", "name", *keys])
    for job in jobs:
        writer.writerow([job.id, _safe(job.name), *(_safe((job.values or {}).get(key)) for key in keys)])


def _safe(value: Any) -> Any:
    """Return a value for CSV; a text that a spreadsheet would run as a formula is quoted."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = one_line(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and text not in ("-Infinity",) else text
