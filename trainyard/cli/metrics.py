"""`metrics`: jobs' curves as a table, plots, CSV or JSON."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from trainyard.cli.arguments import JobsArgument, JsonOption, find_jobs, make_client
from trainyard.cli.output import (
    format_duration,
    format_metric,
    format_number,
    print_error,
    print_json,
    print_line,
    print_table,
    print_text,
    short_ids,
)
from trainyard.cli.plots import finite_range, plot, sparkline
from trainyard.client import Client, NotFoundError
from trainyard.contract.wire.curves import AXIS_COLUMNS, CurveAxis, MetricsResource, Series
from trainyard.contract.wire.jobs import TERMINAL, JobResource

_DRAWN_POINTS = 400
_FEWEST_POINTS = 10

AxisOption = Annotated[CurveAxis, typer.Option("--x", help="X axis: `step`, `time` (seconds of training) or `tokens`.")]


def metrics(
    ctx: typer.Context,
    job_ids: JobsArgument,
    keys: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="Plot only this metric; can be repeated.")
    ] = None,
    from_step: Annotated[int | None, typer.Option(min=0, help="Only from this step on.")] = None,
    max_points: Annotated[int | None, typer.Option(min=10, help="Downsample each curve to this many points.")] = None,
    x: AxisOption = "step",
    as_csv: Annotated[
        bool, typer.Option("--csv", help="CSV with every point: key,step,value,time; with several jobs, job first.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the metrics of one job or several.

    Example: trainyard metrics last --key train/loss
    """
    with make_client(ctx) as client:
        jobs = find_jobs(client, job_ids)
        if as_csv:
            texts = [
                client.metrics_csv(j.id, keys or (), from_step=from_step, max_points=max_points, x=x) for j in jobs
            ]
            if keys and not from_step and not any(text.count("\n") > 1 for text in texts):
                _report_unknown_keys(client, jobs, keys)
            print_text(texts[0] if len(jobs) == 1 else "".join(_join_csv(jobs, texts)))
            return
        drawn = max_points if as_json else max_points or _DRAWN_POINTS
        curves = [client.metrics(j.id, keys or (), from_step=from_step, max_points=drawn, x=x) for j in jobs]
        empty = not any(series.steps for one in curves for series in one.series)
        known = _report_unknown_keys(client, jobs, keys) if keys and empty and not from_step else ""
    if as_json:
        for one in curves:
            print_json(one)
    elif empty:
        if not keys and not from_step:
            print_error(describe_none(jobs))
        else:
            named = f" named {', '.join(keys)}" if keys else ""
            print_error(f"no metrics{named} {f'from step {from_step} on' if from_step else 'yet'}{known}")
    elif keys:
        print_plots(curves)
    else:
        print_metrics(curves)


def describe_none(jobs: Sequence[JobResource]) -> str:
    """Return the message that the jobs have no metrics: whether some can still come."""
    if not all(job.status in TERMINAL for job in jobs):
        return "no metrics yet"
    return f"job {jobs[0].id} ended without metrics" if len(jobs) == 1 else "these jobs ended without metrics"


def _join_csv(jobs: Sequence[JobResource], texts: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a CSV text for several jobs, whose first column is the job."""
    yield f"job,{texts[0].splitlines()[0]}\n"
    for job, text in zip(jobs, texts, strict=True):
        for line in text.splitlines()[1:]:
            yield f"{job.id},{line}\n"


def _report_unknown_keys(client: Client, jobs: Sequence[JobResource], keys: Sequence[str]) -> str:
    """Return the end of a message that lists the metrics of the first job; empty if it has none yet.

    Raises:
        NotFoundError: All jobs have ended, so that no points of these metrics will come.
    """
    everything = client.metrics(jobs[0].id, max_points=_FEWEST_POINTS)
    known = ", ".join(series.key for series in everything.series if series.steps)
    if all(job.status in TERMINAL for job in jobs):
        raise NotFoundError(f"job {jobs[0].id} has no metrics named {', '.join(keys)}; it has: {known or 'none'}")
    return f"; there are: {known}" if known else ""


def print_metrics(curves: Sequence[MetricsResource]) -> None:
    """Print a table with a row per metric and job."""
    several = len(curves) > 1
    axis = AXIS_COLUMNS.get(curves[0].axis, "").upper()
    rows = []
    short = short_ids([one.job_id for one in curves])
    for one, series in _by_metric(curves):
        row = _row(series, one.axis)
        rows.append((row[0], short[one.job_id], *row[1:]) if several else row)
    headings = ("METRIC", *(("JOB",) if several else ()), "LAST", "MIN", "MAX", "STEP")
    print_table((*headings, *((axis,) if axis else ()), "CURVE"), rows, optional=("MAX", "MIN", "CURVE"))


def print_plots(curves: Sequence[MetricsResource]) -> None:
    """Print a plot per metric and job."""
    for one, series in _by_metric(curves):
        suffix = f" of {one.job_id}" if len(curves) > 1 else ""
        print_line(f"{series.key}{suffix}: {format_number(series.values[-1])} at {format_position(series, one.axis)}")
        print("\n".join(plot_series(series)))


def _by_metric(curves: Sequence[MetricsResource]) -> list[tuple[MetricsResource, Series]]:
    """Return the curves that have points, grouped by metric."""
    names = dict.fromkeys(series.key for one in curves for series in one.series if series.steps)
    return [
        (one, series) for key in names for one in curves for series in one.series if series.key == key and series.steps
    ]


def plot_series(series: Series) -> list[str]:
    """Return the lines of a plot with the range of its x-axis below."""
    return plot(series.values, series.x or series.steps, unit="" if series.x else "step")


def format_position(series: Series, axis: CurveAxis) -> str:
    """Return the position of the curve's last point, such as `step 100, 12 s of training`."""
    step = f"step {series.steps[-1]}"
    if not series.x:
        return step
    return f"{step}, {format_x(series.x[-1], axis)} {'of training' if axis == 'time' else 'tokens'}"


def format_x(x: float, axis: CurveAxis) -> str:
    return format_duration(x) if axis == "time" else f"{x:,.0f}"


def _row(series: Series, axis: CurveAxis) -> tuple[str, ...]:
    last, low, high = (format_metric(series.key, value) for value in (series.values[-1], *finite_range(series.values)))
    has_points = (format_x(series.x[-1], axis),) if series.x else ()
    return series.key, last, low, high, str(series.steps[-1]), *has_points, sparkline(series.values)
