"""The routes that read curves."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from service.api.compared_jobs import ComparedJobs, require_distinct
from service.api.dependencies import AppStateDep, JobId, NowDep, UserDep, after_query
from service.api.json_body import Handler, SlotRoute
from service.core.errors import NotFoundError
from service.core.thread_slots import change_thread_slots, iterate_in_thread_slot
from service.metrics.downsampling.levels import MAX_STEP
from service.metrics.export import comparison_csv, csv_lines, curves_json, point_page
from service.metrics.queries import CurveQuery, read_curves
from trainyard.contract.stored_name import stored_name
from trainyard.contract.wire.curves import ComparisonResource, CurveAxis, MetricsResource, PointResource
from trainyard.contract.wire.pages import Page


class CurveRoute(SlotRoute):
    """Uses the few slots of curves, which may take seconds of processor time and much memory."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            change_thread_slots(request.app.state.app_state.curve_slots)
            return await handler(request)

        return handle


router = APIRouter(prefix="/v1", tags=["metrics"], route_class=CurveRoute)

MAX_PAGE = 10_000
_MAX_COMPARED_POINTS = 100_000
"""Points per series in a response about several jobs."""

_EACH = "The name of a metric to return, as the program logged it; may be repeated."
Key = Annotated[
    list[str] | None,
    Query(
        description=f"{_EACH} Absent: all but what launchers measure of nodes, ranks and GPUs.",
        max_length=200,
        examples=[["train/loss"]],
    ),
]
PointKey = Annotated[
    list[str] | None, Query(description=f"{_EACH} Absent: all.", max_length=200, examples=[["train/loss"]])
]
Keys = Annotated[
    list[str] | None, Query(description="As `key`: several names without commas, separated by commas.", max_length=200)
]
System = Annotated[
    bool,
    Query(description="Without `key`: also what launchers measure, in names such as `system/node-0/cpu_percent`."),
]
FromStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="Omit earlier steps.")]
ToStep = Annotated[int, Query(ge=0, le=MAX_STEP, description="Omit later steps.")]
XAxis = Annotated[
    CurveAxis,
    Query(
        description="The meaning of `x` in each series: `time`, seconds of training without the gaps between "
        "executions, or `tokens`, the number of tokens trained on. `steps` are always included."
    ),
]
Format = Annotated[Literal["json", "csv"], Query(description="`csv` returns a table with one line per point.")]
MaxPoints = Annotated[int, Query(ge=10, le=1_000_000, description="Maximum number of points per series.")]


def _names(key: list[str] | None, keys: list[str] | None) -> tuple[str, ...]:
    """Return the stored names of the requested metrics."""
    split = (part for text in keys or () for part in text.split(",") if part)
    return tuple(dict.fromkeys(map(stored_name, (*(key or ()), *split))))


def _json(resource: MetricsResource | ComparisonResource) -> Response:
    return Response(b"".join(curves_json(resource)), media_type="application/json")


@router.get(
    "/jobs/{job_id}/metrics",
    operation_id="get_metrics",
    response_model=MetricsResource,
    responses={200: {"content": {"text/csv": {}}}},
)
def read_metrics(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    key: Key = None,
    keys: Keys = None,
    from_step: FromStep = 0,
    to_step: ToStep = MAX_STEP,
    max_points: MaxPoints = 2000,
    x: XAxis = "step",
    system: System = False,
    format: Format = "json",
) -> Any:
    """Return a job's curves. A series with more points than `max_points` is downsampled and marked `truncated`.

    At most 500 series are returned, of 1,000,000 points together; `series_omitted` counts the others.
    """
    query = CurveQuery(_names(key, keys), from_step, to_step, max_points, x, system=system)
    if format == "csv":
        return StreamingResponse(
            iterate_in_thread_slot(csv_lines(app_state.database, job_id, query, now)), media_type="text/csv"
        )
    # Serialized here, in a thread: FastAPI would do it on the event loop.
    return _json(read_curves(app_state.database, job_id, query, now))


@router.get("/jobs/{job_id}/points", operation_id="list_points")
def list_points(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job_id: JobId,
    key: PointKey = None,
    keys: Keys = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of points.")] = 1000,
    after: Annotated[str | None, after_query(r"^[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}$")] = None,
) -> Page[PointResource]:
    """List a job's points as they were reported, ordered by metric and step."""
    return point_page(app_state.database, job_id, _names(key, keys), after, limit, now)


@router.get(
    "/metrics",
    operation_id="compare_metrics",
    response_model=ComparisonResource,
    responses={200: {"content": {"text/csv": {}}}},
)
def compare_metrics(
    app_state: AppStateDep,
    _user: UserDep,
    now: NowDep,
    job: ComparedJobs,
    key: Key = None,
    keys: Keys = None,
    from_step: FromStep = 0,
    to_step: ToStep = MAX_STEP,
    max_points: Annotated[
        int, Query(ge=10, le=_MAX_COMPARED_POINTS, description="Maximum number of points per series.")
    ] = 2000,
    x: XAxis = "step",
    system: System = False,
    format: Format = "json",
) -> Any:
    """Return the curves of several jobs."""
    require_distinct(job)
    query = CurveQuery(_names(key, keys), from_step, to_step, max_points, x, system=system)
    try:
        if format == "csv":
            lines = comparison_csv(app_state.database, job, query, now)
            return StreamingResponse(iterate_in_thread_slot(lines), media_type="text/csv")
        query = query.divided_among(len(job))
        return _json(ComparisonResource(data=[read_curves(app_state.database, job_id, query, now) for job_id in job]))
    except NotFoundError as error:
        error.param = "job"
        raise
