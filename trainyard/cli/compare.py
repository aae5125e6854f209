"""`compare`: differing fields of jobs' specs, and their metrics."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from trainyard.cli.arguments import JsonOption, SweepOption, find_jobs, find_sweep, make_client
from trainyard.cli.completion import complete_job
from trainyard.cli.errors import UsageError
from trainyard.cli.metrics import AxisOption, describe_none, format_position, format_x, plot_series
from trainyard.cli.output import StatusText, format_number, print_error, print_json, print_line, print_table, short_ids
from trainyard.cli.plots import finite_range, sparkline
from trainyard.client import Client, NotFoundError
from trainyard.contract.spec.spec_diff import comparable, differing_paths
from trainyard.contract.wire.curves import AXIS_COLUMNS, CurveAxis, MetricsResource, Series
from trainyard.contract.wire.jobs import TERMINAL, JobResource

_PREFERRED = ("eval/loss", "train/loss")
_JOBS_PER_REQUEST = 20

Field = tuple[str, list[str]]
"""A field's path, and its value in each of the jobs."""


def compare(
    ctx: typer.Context,
    job_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB", autocompletion=complete_job, help="Two or more: ids, abbreviated ids, names, or `last`."
        ),
    ] = None,
    sweep: SweepOption = None,
    keys: Annotated[list[str] | None, typer.Option("--key", "-k", help="Plot this metric; can be repeated.")] = None,
    x: AxisOption = "step",
    as_json: JsonOption = False,
) -> None:
    """Compare jobs: the fields in which their specs differ, and their metrics.

    Example: trainyard compare --sweep last --key eval/loss
    """
    with make_client(ctx) as client:
        jobs, metric = _jobs(client, job_ids or [], sweep)
        results = _metrics(client, jobs, keys or (), x)
    if keys and all(job.status in TERMINAL for job in jobs):
        _require_points(jobs, results, keys)
    differing = differing_paths([comparable(job.spec, job.parameters) for job in jobs])
    if as_json:
        for job, metrics in zip(jobs, results, strict=True):
            print_json(_as_json(job, differing, metrics))
        return
    chosen = keys or default_metric(results, metric)
    fields = _differing_values(jobs, differing)
    result_columns: list[Field] = [
        ("JOB", list(short_ids([job.id for job in jobs]).values())),
        ("STATUS", [str(job.status) for job in jobs]),
        *((heading, ["1.234e-05"]) for heading in ("LAST", "MIN", "MAX")),
    ]
    from trainyard.cli.tables import fits_terminal  # Rich is loaded for a table alone.

    if not fits_terminal([*result_columns, *fields]):
        _print_fields(jobs, fields)
        fields = []
    for key in chosen or [""]:
        _tabulate(jobs, fields, results, key)
    if keys:
        _plot(jobs, results, keys)
    elif not chosen:
        print_error(describe_none(jobs))


def default_metric(results: Sequence[MetricsResource], of_sweep: str = "") -> list[str]:
    """Return the metric to show: the sweep's metric if a job has it, else the evaluation loss, or the training loss if
    more jobs have it; [] without both."""
    counts = Counter(series.key for metrics in results for series in metrics.series if series.steps)
    if counts[of_sweep]:
        return [of_sweep]
    best = max(_PREFERRED, key=counts.__getitem__)
    return [best] if counts[best] else []


def _require_points(jobs: Sequence[JobResource], results: Sequence[MetricsResource], keys: Sequence[str]) -> None:
    """Raise NotFoundError if none of the jobs has points of these metrics."""
    if not any(series.steps for metrics in results for series in metrics.series):
        available = ", ".join(sorted({key for job in jobs for key in job.metrics}))
        raise NotFoundError(f"no metrics named {', '.join(keys)}; there are: {available or 'none'}")


def _jobs(client: Client, references: list[str], sweep: str | None) -> tuple[list[JobResource], str]:
    """Return the jobs to compare, and the metric by which their sweep ranks them."""
    if bool(references) == (sweep is not None):
        raise UsageError("name the jobs to compare, or one sweep with --sweep")
    if sweep is None:
        return find_jobs(client, references), ""
    results = find_sweep(client, sweep)
    by_id = {job.id: job.resource for job in client.jobs(sweep=results.id)}
    jobs = [by_id[member.job_id] for member in results.members if member.job_id in by_id]
    if not jobs:
        raise UsageError(f"all jobs of sweep {results.id} were deleted")
    return jobs, results.metric


def _metrics(client: Client, jobs: Sequence[JobResource], keys: Sequence[str], x: CurveAxis) -> list[MetricsResource]:
    results: list[MetricsResource] = []
    for start in range(0, len(jobs), _JOBS_PER_REQUEST):
        ids = [job.id for job in jobs[start : start + _JOBS_PER_REQUEST]]
        results += client.metrics_of(ids, keys, max_points=400, x=x)
    return results


def _differing_values(jobs: Sequence[JobResource], differing: Sequence[str]) -> list[Field]:
    specs = [comparable(job.spec, job.parameters) for job in jobs]
    return [(path, [str(spec.get(path, "-")) for spec in specs]) for path in differing]


def _print_fields(jobs: Sequence[JobResource], fields: Sequence[Field]) -> None:
    """Print a row per field and job, for fields that do not fit into the columns of the table of results."""
    ids = short_ids([job.id for job in jobs]).values()
    rows = [(path if at == 0 else "", id_, values[at]) for path, values in fields for at, id_ in enumerate(ids)]
    print_table(("FIELD", "JOB", "VALUE"), rows)
    print()


def _tabulate(
    jobs: Sequence[JobResource], fields: Sequence[Field], results: Sequence[MetricsResource], key: str
) -> None:
    rows: list[tuple[str, ...]] = []
    axis = AXIS_COLUMNS.get(results[0].axis, "").upper()
    short = short_ids([job.id for job in jobs])
    for at, (job, metrics) in enumerate(zip(jobs, results, strict=True)):
        cells = [values[at] for _, values in fields]
        series = _series(metrics, key)
        last = format_number(series.values[-1]) if series else "-"
        low, high = map(format_number, finite_range(series.values)) if series else ("-", "-")
        curve = sparkline(series.values, 16) if series else ""
        at_x = (format_x(series.x[-1], metrics.axis) if series and series.x else "-",) if axis else ()
        rows.append((short[job.id], *cells, StatusText(job.status), last, low, high, *at_x, curve))
    if key:
        print_line(key)
    headings = ("JOB", *(path for path, _ in fields), "STATUS", "LAST", "MIN", "MAX")
    print_table((*headings, *((axis,) if axis else ()), "CURVE"), rows, optional=("CURVE", "MAX", "MIN"))


def _plot(jobs: Sequence[JobResource], results: Sequence[MetricsResource], keys: Sequence[str]) -> None:
    for key in keys:
        for job, metrics in zip(jobs, results, strict=True):
            if series := _series(metrics, key):
                print_line(
                    f"{key} of {job.id}: {format_number(series.values[-1])} at {format_position(series, metrics.axis)}"
                )
                print("\n".join(plot_series(series)))


def _series(metrics: MetricsResource, key: str) -> Series | None:
    return next((series for series in metrics.series if series.key == key and series.steps), None)


def _as_json(job: JobResource, differing: list[str], metrics: MetricsResource) -> dict[str, Any]:
    specs = comparable(job.spec, job.parameters)
    return {
        "job_id": job.id,
        "name": job.name,
        "status": job.status,
        "differs": {path: specs.get(path) for path in differing},
        "metrics": job.model_dump(mode="json")["metrics"],
        "series": metrics.model_dump(mode="json")["series"],
    }
