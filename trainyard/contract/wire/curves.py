"""Curves as the service answers with them: of one job, of several, and point by point."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from trainyard.contract.base import AnyFloat, Resource, Timestamp

CurveAxis = Literal["step", "time", "tokens"]
"""What curves are read over: steps, seconds of training, or tokens seen."""

AXIS_COLUMNS: Mapping[CurveAxis, str] = MappingProxyType({"time": "seconds", "tokens": "tokens"})
"""The column that an axis adds to a table. Steps are always there."""


class Series(Resource):
    """One metric over the steps; the lists are of one length."""

    key: str
    steps: list[int]
    values: list[AnyFloat]
    times: list[Timestamp]
    x: list[float] | None = None
    """Where `x=time` or `x=tokens` was asked for: seconds of training without the gaps between executions, or tokens
    seen."""
    truncated: bool = False
    """Thinned to the smallest and largest value of each bucket of steps."""


class ComparisonResource(Resource):
    """The series of several jobs, in the order in which they were asked for."""

    object: Literal["list"] = "list"
    data: list["MetricsResource"]


class PointResource(Resource):
    """One stored point as it is."""

    object: Literal["point"] = "point"
    id: str
    key: str
    step: int
    execution: int
    value: AnyFloat
    time: Timestamp


class MetricsResource(Resource):
    """The series of one job."""

    object: Literal["metrics"] = "metrics"
    job_id: str
    axis: CurveAxis = "step"
    """What `x` of each series is."""
    series: list[Series]

    def table(self) -> dict[str, list[Any]]:
        """Columns `key`, `step`, `value` and `time`, one row a point: what `pandas.DataFrame(...)` takes. Read over
        another axis, `seconds` or `tokens` besides."""
        columns: dict[str, list[Any]] = {
            "key": [one.key for one in self.series for _ in one.steps],
            "step": [step for one in self.series for step in one.steps],
            "value": [value for one in self.series for value in one.values],
            "time": [time for one in self.series for time in one.times],
        }
        if column := AXIS_COLUMNS.get(self.axis):
            columns[column] = [x for one in self.series for x in one.x or ()]
        return columns
