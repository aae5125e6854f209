"""The requests that read curves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainyard.client.wire import Request, given, job_path, model, page, several
from trainyard.contract.wire.curves import ComparisonResource, CurveAxis, MetricsResource, PointResource
from trainyard.contract.wire.pages import Page

Keys = str | Sequence[str]
"""One or several; a text is one, not its letters."""

POINTS_PAGE = 10_000

ALL_POINTS = 1_000_000
"""Of a series; the service thins what is longer than it is asked for, and by default to far less."""


def metrics(
    job_id: str,
    keys: Keys = (),
    *,
    from_step: int | None = None,
    max_points: int | None = None,
    x: CurveAxis = "step",
) -> Request[MetricsResource]:
    """Curves, whole unless `max_points` asks for each to be thinned to its extremes.

    Args:
        x: what they are read over besides steps: `time`, seconds of training, or `tokens` seen.
    """
    return Request("GET", job_path(job_id, "metrics"), model(MetricsResource), _wanted(keys, from_step, max_points, x))


def _wanted(keys: Keys, from_step: int | None, max_points: int | None, x: CurveAxis) -> dict[str, Any]:
    axis = None if x == "step" else x
    return given(keys=several(keys), from_step=from_step, max_points=max_points or ALL_POINTS, x=axis)


def metrics_table(
    job_id: str,
    keys: Keys = (),
    *,
    from_step: int | None = None,
    max_points: int | None = None,
    x: CurveAxis = "step",
) -> Request[dict[str, list[Any]]]:
    """Curves as columns, one row a point: what `pandas.DataFrame(...)` takes."""
    request = metrics(job_id, keys, from_step=from_step, max_points=max_points, x=x)
    return Request("GET", request.path, lambda answer: request.parse(answer).table(), request.params)


def metrics_of(
    job_ids: Keys,
    keys: Keys = (),
    *,
    from_step: int | None = None,
    max_points: int = 2000,
    x: CurveAxis = "step",
) -> Request[list[MetricsResource]]:
    """The curves of several jobs in one answer, each thinned to `max_points`, in the order of the ids."""
    params = {"job": several(job_ids), **_wanted(keys, from_step, max_points, x)}
    return Request("GET", "/v1/metrics", lambda answer: model(ComparisonResource)(answer).data, params)


def points(job_id: str, keys: Keys = ()) -> Request[Page[PointResource]]:
    """Every point as it was reported, by metric and step, however many there are."""
    request = page(job_path(job_id, "points"), PointResource, keys=several(keys))
    return replace(request, params={**request.params, "limit": POINTS_PAGE})


def metrics_csv(
    job_id: str,
    keys: Keys = (),
    *,
    from_step: int | None = None,
    max_points: int | None = None,
    x: CurveAxis = "step",
) -> Request[str]:
    """The same points as text with the columns `key,step,value,time`, and `seconds` or `tokens`."""
    params = {**_wanted(keys, from_step, max_points, x), "format": "csv"}
    return Request("GET", job_path(job_id, "metrics"), lambda response: response.text, params)


def metrics_csv_of(
    job_ids: Keys,
    keys: Keys = (),
    *,
    from_step: int | None = None,
    max_points: int = 2000,
    x: CurveAxis = "step",
) -> Request[str]:
    """The curves of several jobs as one text, with the column `job` before those of `metrics_csv`."""
    request = metrics_of(job_ids, keys, from_step=from_step, max_points=max_points, x=x)
    return Request("GET", request.path, lambda response: response.text, {**request.params, "format": "csv"})
