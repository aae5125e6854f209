"""Curves of jobs, and single points."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from trainyard.contract.base import EXAMPLE_LATER, EXAMPLE_TIME, AnyFloat, Resource, Timestamp, example

CurveAxis = Literal["step", "time", "tokens"]
"""The x axis of curves: steps, seconds of training, or tokens processed."""

AXIS_COLUMNS: Mapping[CurveAxis, str] = MappingProxyType({"time": "seconds", "tokens": "tokens"})
"""The column that each axis adds to a table, which always contains steps."""


class Series(Resource):
    """The points of a metric; all lists have the same length."""

    key: str
    steps: list[int]
    values: list[AnyFloat]
    times: list[Timestamp]
    x: list[float] | None = None
    """With `x=time`, seconds of training without the gaps between executions; with `x=tokens`, tokens processed."""
    truncated: bool = False
    """Whether the curve is downsampled to the smallest and largest value of each bucket of steps."""


class ComparisonResource(Resource):
    """The curves of several jobs, in the order of the request."""

    object: Literal["list"] = "list"
    data: list["MetricsResource"]


class PointResource(Resource):
    """One stored point."""

    object: Literal["point"] = "point"
    id: str = Field(examples=["1.10.1"])
    key: str
    step: int = Field(examples=[10])
    execution: int
    value: AnyFloat
    time: Timestamp


class MetricsResource(Resource):
    """The curves of a job."""

    model_config = example(
        series=[{"key": "train/loss", "steps": [10, 20], "values": [0.5, 0.25], "times": [EXAMPLE_TIME, EXAMPLE_LATER]}]
    )

    object: Literal["metrics"] = "metrics"
    job_id: str
    axis: CurveAxis = Field(default="step", examples=["step"])
    """The meaning of `x` in each series."""
    series: list[Series]
    series_omitted: int = 0
    """The number of further metrics; name them in `keys`, or export CSV."""

    def table(self) -> dict[str, list[Any]]:
        """Return the columns `key`, `step`, `value` and `time`, and for another axis `seconds` or `tokens`, with a row
        for each point. `pandas.DataFrame` accepts the result."""
        columns: dict[str, list[Any]] = {
            "key": [one.key for one in self.series for _ in one.steps],
            "step": [step for one in self.series for step in one.steps],
            "value": [value for one in self.series for value in one.values],
            "time": [time for one in self.series for time in one.times],
        }
        if column := AXIS_COLUMNS.get(self.axis):
            columns[column] = [x for one in self.series for x in one.x or ()]
        return columns


class CurvesOfJobs(list[MetricsResource]):
    """The curves of several jobs, an item for each job."""

    def table(self) -> dict[str, list[Any]]:
        """Return the columns of `MetricsResource.table` with the column `job` before them."""
        tables = [one.table() for one in self]
        jobs = [one.job_id for one, columns in zip(self, tables, strict=True) for _ in columns["key"]]
        names = tables[0] if tables else ()
        return {"job": jobs} | {name: [value for columns in tables for value in columns[name]] for name in names}
