"""The routes that read curves."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from service.api.dependencies import AppStateDep, NowDep, UserDep, after_query
from service.core.errors import InvalidRequestError, NotFoundError
from service.metrics.downsampling.levels import MAX_STEP
from service.metrics.export import comparison_csv, csv_lines, point_page
from service.metrics.queries import CurveQuery, read_curves
from trainyard.contract.wire.curves import ComparisonResource, CurveAxis, MetricsResource, PointResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1", tags=["reports"])

MAX_JOBS = 20
MAX_PAGE = 10_000
_COMPARED_POINTS = 100_000
"""Of one series in an answer about several jobs."""

Keys = Annotated[
    list[str] | None, Query(description="Which metrics, repeated or with commas; all if left out.", max_length=200)
]
FromStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="Leave out earlier steps.")]
ToStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="Leave out later steps.")]
Over = Annotated[
    CurveAxis,
    Query(
        description="What `x` of each series is: `time`, seconds of training without the gaps between executions, or "
        "`tokens` seen. Steps are there in any case."
    ),
]
Format = Annotated[Literal["json", "csv"], Query(description="`csv` for a table, one line a point.")]
MaxPoints = Annotated[int, Query(ge=10, le=1_000_000, description="At most so many a series.")]


def _names(keys: list[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for key in keys or () for part in key.split(",") if part))


@router.get(
    "/jobs/{job_id}/metrics",
    operation_id="get_metrics",
    response_model=MetricsResource,
    responses={200: {"content": {"text/csv": {}}}},
)
def read_metrics(
    services: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: str,
    keys: Keys = None,
    from_step: FromStep = 0,
    to_step: ToStep = MAX_STEP,
    max_points: MaxPoints = 2000,
    x: Over = "step",
    format: Format = "json",
) -> Any:
    """Curves, thinned to the extremes where there are more points than asked for: such a series is `truncated`."""
    wanted = CurveQuery(_names(keys), from_step, to_step, max_points, x)
    if format == "csv":
        return StreamingResponse(csv_lines(services.database, job_id, wanted, now), media_type="text/csv")
    return read_curves(services.database, job_id, wanted, now)


@router.get("/jobs/{job_id}/points", operation_id="list_points")
def list_points(
    services: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: str,
    keys: Keys = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")] = 1000,
    after: Annotated[str | None, after_query(r"^[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}$")] = None,
) -> Page[PointResource]:
    """Every point as it was reported, in order of metric and step."""
    return point_page(services.database, job_id, _names(keys), after, limit, now)


@router.get(
    "/metrics",
    operation_id="compare_metrics",
    response_model=ComparisonResource,
    responses={200: {"content": {"text/csv": {}}}},
)
def compare_metrics(
    services: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job: Annotated[
        list[str],
        Query(
            min_length=1,
            max_length=MAX_JOBS,
            description="A job's id; repeated, each once.",
            json_schema_extra={"uniqueItems": True},
        ),
    ],
    keys: Keys = None,
    from_step: FromStep = 0,
    to_step: ToStep = MAX_STEP,
    max_points: Annotated[int, Query(ge=10, le=_COMPARED_POINTS, description="At most so many a series.")] = 2000,
    x: Over = "step",
    format: Format = "json",
) -> Any:
    """The curves of several jobs in one answer."""
    if len(set(job)) < len(job):
        raise InvalidRequestError("names a job twice", param="job")
    wanted = CurveQuery(_names(keys), from_step, to_step, max_points, x)
    try:
        if format == "csv":
            return StreamingResponse(comparison_csv(services.database, job, wanted, now), media_type="text/csv")
        return ComparisonResource(data=[read_curves(services.database, job_id, wanted, now) for job_id in job])
    except NotFoundError as error:
        error.param = "job"
        raise
