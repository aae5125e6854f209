"""How a job is displayed in a notebook."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from trainyard.client.errors import TrainyardError
from trainyard.contract.wire.jobs import JobResource

_WIDTH, _HEIGHT = 160, 24
_MAX_METRICS = 8
_MAX_POINTS = 200


def job_html(job: JobResource, url: str, curves: Mapping[str, Sequence[Any]]) -> str:
    """Return a table of the job: name, status, progress and the newest metrics.

    Args:
        url: the address of its page, to which its id links.
        curves: columns of curves; a metric among them has a sparkline.
    """
    progress = job.progress.step_text(" of ") if job.progress else "-"
    rows = [("status", f"{job.status}: {job.status_message}"), ("step", progress)]
    lines = [f'<tr><th>job</th><td><a href="{escape(url)}" target="_blank">{escape(job.id)}</a></td><td></td></tr>']
    lines += [f"<tr><th>{escape(name)}</th><td>{escape(text)}</td><td></td></tr>" for name, text in rows]
    for key in shown_metrics(job):
        named = zip(curves.get("key", ()), curves.get("value", ()), strict=True)
        curve = sparkline([value for name, value in named if name == key])
        lines.append(f"<tr><th>{escape(key)}</th><td>{_number(job.metrics[key])}</td><td>{curve}</td></tr>")
    return f"<table><caption>{escape(job.name)}</caption>{''.join(lines)}</table>"


def shown_metrics(job: JobResource) -> list[str]:
    """The metrics that the table of a job has."""
    return sorted(job.metrics)[:_MAX_METRICS]


def read_curves(job: JobResource, read: Callable[..., Any]) -> Mapping[str, Sequence[Any]]:
    """Return the columns of the curves that the table shows; empty if they cannot be read now.

    Args:
        read: `Client.metrics`, or `AsyncClient.metrics`, for which a table cannot wait.
    """
    if not (keys := shown_metrics(job)):
        return {}
    try:
        curves = read(job.id, keys, max_points=_MAX_POINTS)
    except TrainyardError:
        return {}
    if inspect.iscoroutine(curves):
        curves.close()
        return {}
    columns: Mapping[str, Sequence[Any]] = curves.table()
    return columns


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def sparkline(values: Sequence[Any]) -> str:
    """Return an SVG image of the finite values, or an empty text if there are fewer than two."""
    finite = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    shown = finite[:: max(1, -(-len(finite) // _MAX_POINTS))]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    scale = (_HEIGHT - 2) / (high - low) if high > low else 0.0
    points = " ".join(
        f"{index * _WIDTH / (len(shown) - 1):.1f},{_HEIGHT - 1 - (value - low) * scale:.1f}"
        for index, value in enumerate(shown)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="curve">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )
