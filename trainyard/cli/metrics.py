"""`metrics`: jobs' curves as a table, drawings, CSV or JSON."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from trainyard.cli.curves import bounds, plot, sparkline
from trainyard.cli.output import complain, duration, emit, measured, number, say, table, write
from trainyard.cli.session import JobsArgument, JsonOption, client_of, find_jobs
from trainyard.client import Client, NotFoundError
from trainyard.contract.wire.curves import AXIS_COLUMNS, CurveAxis, MetricsResource, Series
from trainyard.contract.wire.jobs import TERMINAL, JobResource

_DRAWN_POINTS = 400
_FEWEST_POINTS = 10

AxisOption = Annotated[
    CurveAxis, typer.Option("--x", help="Read over `step`, `time` (seconds of training) or `tokens` seen.")
]


def metrics(
    ctx: typer.Context,
    job_ids: JobsArgument,
    keys: Annotated[list[str] | None, typer.Option("--key", "-k", help="Only this metric, drawn larger.")] = None,
    from_step: Annotated[int | None, typer.Option(min=0, help="Leave out earlier steps.")] = None,
    max_points: Annotated[int | None, typer.Option(min=10, help="Thin each curve to so many points.")] = None,
    x: AxisOption = "step",
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Every point: key,step,value,time; of several jobs, job before them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the metrics of one job, or of several beside each other.

    Example: trainyard metrics last --key train/loss
    """
    with client_of(ctx) as client:
        jobs = find_jobs(client, job_ids)
        if as_csv:
            texts = [
                client.metrics_csv(j.id, keys or (), from_step=from_step, max_points=max_points, x=x) for j in jobs
            ]
            _require_some(client, jobs, keys, there=any(text.count("\n") > 1 for text in texts) or bool(from_step))
            write(texts[0] if len(jobs) == 1 else "".join(_joined(jobs, texts)))
            return
        drawn = max_points if as_json else max_points or _DRAWN_POINTS
        found = [client.metrics(j.id, keys or (), from_step=from_step, max_points=drawn, x=x) for j in jobs]
        empty = not any(series.steps for one in found for series in one.series)
        _require_some(client, jobs, keys, there=not empty or bool(from_step))
    if as_json:
        for one in found:
            emit(one)
    elif empty:
        named = f" named {', '.join(keys)}" if keys else ""
        complain(f"no metrics{named} {f'from step {from_step} on' if from_step else 'yet'}")
    elif keys:
        draw(found)
    else:
        tabulate(found)


def _joined(jobs: Sequence[JobResource], texts: Sequence[str]) -> Iterator[str]:
    """One CSV of several: the heading once, and whose each line is."""
    yield f"job,{texts[0].splitlines()[0]}\n"
    for job, text in zip(jobs, texts, strict=True):
        for line in text.splitlines()[1:]:
            yield f"{job.id},{line}\n"


def _require_some(client: Client, jobs: Sequence[JobResource], keys: Sequence[str] | None, *, there: bool) -> None:
    """Of jobs that are over, what is not there will not come. Raises NotFoundError."""
    if not keys or there or not all(job.status in TERMINAL for job in jobs):
        return
    everything = client.metrics(jobs[0].id, max_points=_FEWEST_POINTS)
    known = ", ".join(series.key for series in everything.series if series.steps)
    raise NotFoundError(f"job {jobs[0].id} has no metrics named {', '.join(keys)}; it has: {known or 'none'}")


def tabulate(found: Sequence[MetricsResource]) -> None:
    """One line a metric, and of several jobs one each."""
    several = len(found) > 1
    axis = AXIS_COLUMNS.get(found[0].axis, "").upper()
    rows = []
    for one, series in _by_metric(found):
        row = _row(series, one.axis)
        rows.append((row[0], one.job_id, *row[1:]) if several else row)
    headings = ("METRIC", *(("JOB",) if several else ()), "LAST", "SMALLEST", "LARGEST", "STEP")
    table((*headings, *((axis,) if axis else ()), "CURVE"), rows, spare=("LARGEST", "SMALLEST", "CURVE"))


def draw(found: Sequence[MetricsResource]) -> None:
    """One drawing a metric and job."""
    for one, series in _by_metric(found):
        whose = f" of {one.job_id}" if len(found) > 1 else ""
        say(f"{series.key}{whose}: {number(series.values[-1])} at {place(series, one.axis)}")
        print("\n".join(drawing(series)))


def _by_metric(found: Sequence[MetricsResource]) -> list[tuple[MetricsResource, Series]]:
    """Every curve that is not empty, those of one metric beside each other."""
    names = dict.fromkeys(series.key for one in found for series in one.series if series.steps)
    return [
        (one, series) for key in names for one in found for series in one.series if series.key == key and series.steps
    ]


def drawing(series: Series) -> list[str]:
    """The curve, with the ends of what it is read over below."""
    return plot(series.values, series.x or series.steps, unit="" if series.x else "step")


def place(series: Series, axis: CurveAxis) -> str:
    """Where its last point lies."""
    step = f"step {series.steps[-1]}"
    if not series.x:
        return step
    return f"{step}, {far(series.x[-1], axis)} {'of training' if axis == 'time' else 'tokens'}"


def far(x: float, axis: CurveAxis) -> str:
    return duration(x) if axis == "time" else f"{x:,.0f}"


def _row(series: Series, axis: CurveAxis) -> tuple[str, ...]:
    last, low, high = (measured(series.key, value) for value in (series.values[-1], *bounds(series.values)))
    there = (far(series.x[-1], axis),) if series.x else ()
    return series.key, last, low, high, str(series.steps[-1]), *there, sparkline(series.values)
