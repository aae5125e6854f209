"""`metrics`: a job's curves as a table, a drawing, CSV or JSON."""

from typing import Annotated

import typer

from trainyard.cli.curves import bounds, plot, sparkline
from trainyard.cli.output import complain, emit, number, say, table, write
from trainyard.cli.session import JobArgument, JsonOption, client_of, find_job
from trainyard.client import Client, NotFoundError
from trainyard.contract.resources import TERMINAL, MetricsResource, Series

_DRAWN_POINTS = 400
_FEWEST_POINTS = 10


def metrics(
    ctx: typer.Context,
    job_id: JobArgument,
    keys: Annotated[list[str] | None, typer.Option("--key", "-k", help="Only this metric, drawn larger.")] = None,
    from_step: Annotated[int | None, typer.Option(min=0, help="Leave out earlier steps.")] = None,
    max_points: Annotated[int | None, typer.Option(min=10, help="Thin each curve to so many points.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Every point: key,step,value,time.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a job's metrics.

    Example: trainyard metrics last --key train/loss
    """
    with client_of(ctx) as client:
        job = find_job(client, job_id)
        if as_csv:
            write(client.metrics_csv(job.id, keys or (), from_step=from_step, max_points=max_points))
            return
        drawn = max_points if as_json else max_points or _DRAWN_POINTS
        found = client.metrics(job.id, keys or (), from_step=from_step, max_points=drawn)
        empty = not any(series.steps for series in found.series)
        if keys and empty and job.status in TERMINAL:
            raise _unknown(client, job.id, keys)
    if as_json:
        emit(found)
    elif empty:
        complain("no metrics yet" if not keys else f"no metrics named {', '.join(keys)} yet")
    elif keys:
        draw(found)
    else:
        tabulate(found)


def _unknown(client: Client, job_id: str, keys: list[str]) -> NotFoundError:
    """For a job that is over, what is not there will not come."""
    everything = client.metrics(job_id, max_points=_FEWEST_POINTS)
    there = ", ".join(series.key for series in everything.series if series.steps)
    return NotFoundError(f"job {job_id} has no metrics named {', '.join(keys)}; it has: {there or 'none'}")


def tabulate(found: MetricsResource) -> None:
    """One line a metric."""
    rows = [_row(series) for series in found.series if series.steps]
    table(("METRIC", "LAST", "SMALLEST", "LARGEST", "STEP", "CURVE"), rows)


def draw(found: MetricsResource) -> None:
    """One drawing a metric."""
    for series in found.series:
        if series.steps:
            say(f"{series.key}: {number(series.values[-1])} at step {series.steps[-1]}")
            print("\n".join(plot(series.values, series.steps)))


def _row(series: Series) -> tuple[str, ...]:
    low, high = bounds(series.values)
    last, step = number(series.values[-1]), str(series.steps[-1])
    return series.key, last, number(low), number(high), step, sparkline(series.values)
