"""Calls that read metrics."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from trainyard.client._async.jobs import AsyncJobCalls
from trainyard.client.references import is_whole_id
from trainyard.client.request import Request, as_list, job_path, model, paged, whole_text, without_none
from trainyard.contract.wire.curves import ComparisonResource, CurveAxis, CurvesOfJobs, MetricsResource, PointResource

Keys = str | Sequence[str]
"""One key, or several."""

POINTS_PAGE = 10_000
ALL_POINTS = 1_000_000
"""The most points of a curve that the service returns; by default it downsamples to far fewer."""


def _curve_params(keys: Keys, from_step: int | None, max_points: int | None, x: CurveAxis) -> dict[str, Any]:
    axis = None if x == "step" else x
    return without_none(key=as_list(keys), from_step=from_step, max_points=max_points or ALL_POINTS, x=axis)


class AsyncMetricsCalls(AsyncJobCalls):
    """Calls that read metrics."""

    async def metrics(
        self,
        job_id: str,
        keys: Keys = (),
        *,
        from_step: int | None = None,
        max_points: int | None = None,
        x: CurveAxis = "step",
        system: bool = False,
    ) -> MetricsResource:
        """Return curves of a job, with all points unless `max_points` is given.

        Args:
            keys: metrics to read; default: all except metrics under `system/`.
            from_step: only the points from this step on.
            max_points: downsample each curve to that many points.
            x: a second x axis: `time` for seconds of training, `tokens` for tokens processed.
            system: also read the launchers' metrics of nodes, ranks and GPUs.
        """
        params = _curve_params(keys, from_step, max_points, x) | ({"system": True} if system else {})
        return await self._send(Request("GET", job_path(job_id, "metrics"), model(MetricsResource), params))

    async def metrics_of(
        self,
        job_ids: Keys,
        keys: Keys = (),
        *,
        from_step: int | None = None,
        max_points: int = 2000,
        x: CurveAxis = "step",
    ) -> CurvesOfJobs:
        """Return the curves of several jobs in the order of the ids, each downsampled to `max_points`.

        Each job is named as for `job`: an id, a part of an id, a name or `last`.
        `pandas.DataFrame(client.metrics_of(ids).table())` has a row for each point.
        """
        params = {"job": await self._ids(job_ids), **_curve_params(keys, from_step, max_points, x)}
        return CurvesOfJobs((await self._send(Request("GET", "/v1/metrics", model(ComparisonResource), params))).data)

    async def metrics_csv(
        self,
        job_id: str,
        keys: Keys = (),
        *,
        from_step: int | None = None,
        max_points: int | None = None,
        x: CurveAxis = "step",
    ) -> str:
        """Return the same as CSV with the columns `key,step,value,time`, and `seconds` or `tokens`."""
        params = {**_curve_params(keys, from_step, max_points, x), "format": "csv"}
        return await self._send(Request("GET", job_path(job_id, "metrics"), whole_text, params))

    async def metrics_csv_of(
        self,
        job_ids: Keys,
        keys: Keys = (),
        *,
        from_step: int | None = None,
        max_points: int = 2000,
        x: CurveAxis = "step",
    ) -> str:
        """Return the curves of several jobs as CSV, with the column `job` before the columns of `metrics_csv`."""
        params = {"job": await self._ids(job_ids), **_curve_params(keys, from_step, max_points, x), "format": "csv"}
        return await self._send(Request("GET", "/v1/metrics", whole_text, params))

    async def _ids(self, references: Keys) -> list[str]:
        return [one if is_whole_id(one) else (await self.job(one)).id for one in as_list(references)]

    def points(self, job_id: str, keys: Keys = ()) -> AsyncIterator[PointResource]:
        """Iterate over every stored point, by metric and step."""
        request = paged(job_path(job_id, "points"), PointResource, key=as_list(keys))
        return self._pages(replace(request, params={**request.params, "limit": POINTS_PAGE}))
