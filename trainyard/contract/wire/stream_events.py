"""The data of the server-sent events of the two streams."""

from typing import Literal

from trainyard.contract.base import AnyFloat, Resource
from trainyard.contract.wire.jobs import JobCondition, JobProgress, JobStatus, StatusReason
from trainyard.contract.wire.reports import Point

StreamType = Literal["status", "event", "metrics", "checkpoint", "log"]
"""The names of the server-sent events of `/v1/jobs/{id}/stream`; see docs/api.md for the data of each."""


class StatusUpdate(Resource):
    """Data of a `status` event: the fields of the job that change with its status."""

    status: JobStatus
    status_reason: StatusReason | None = None
    status_message: str
    condition: JobCondition | None = None
    progress: JobProgress | None = None


class MetricsUpdate(Resource):
    """Data of a `metrics` event: new points of an execution."""

    execution: int
    resumed_from_step: int
    points: list[Point]
    progress: JobProgress | None = None
    """The current progress of the job."""


class JobStatusUpdate(StatusUpdate):
    """Data of a `status` event of the stream of all jobs."""

    job_id: str
    name: str


class JobMetricsUpdate(Resource):
    """Data of a `metrics` event of the stream of all jobs: the job's current values."""

    job_id: str
    name: str
    values: dict[str, AnyFloat]
    loss_metric: str | None = None
    """The key of `values` that is the training loss."""
    progress: JobProgress | None = None


class Reset(Resource):
    """Data of a `reset` event of the stream of all jobs: events were missed; reload the list of jobs."""


class LogUpdate(Resource):
    """Data of a `log` event: the next bytes of a log, decoded as UTF-8 with replacement."""

    attempt: int
    rank: str
    """`0`, `1`, ... or `launch`."""
    offset: int
    text: str
