"""The points of a metric in pages, in the form that MLflow's client reads."""

from datetime import datetime

from service.core.errors import InvalidRequestError
from service.db.engine import Database
from service.jobs.repository import JobRepository
from service.metrics.downsampling.levels import MAX_STEP
from service.metrics.export import point_page
from service.metrics.queries import CurveQuery, read_curves
from service.metrics.repository import CurveRepository
from service.metrics.values import json_value
from service.plugins.mlflow.schemas import Document, milliseconds
from trainyard.contract.stored_name import stored_name

MAX_POINTS = 25_000
"""Points of a page; the client asks for as many."""

_Points = list[tuple[int, float, datetime]]
"""Step, value and time of each point."""


def read_history(database: Database, run_id: str, key: str, limit: int, token: str, now: datetime) -> Document:
    """Return the next visible points of a metric, by step; of a job whose points were deleted, the samples.

    Args:
        key: Its name, as the program logged it.
        token: The id of the last point of the previous page; empty: the first page.

    Raises:
        InvalidRequestError: The token is not such an id.
        NotFoundError: There is no such run.
    """
    points, last, has_more = _page(database, run_id, key, limit, token, now)
    metrics = [
        {"key": key, "value": json_value(value), "step": step, "timestamp": milliseconds(time)}
        for step, value, time in points
    ]
    return {"metrics": metrics} | ({"next_page_token": last} if has_more else {})


def _page(
    database: Database, run_id: str, key: str, limit: int, token: str, now: datetime
) -> tuple[_Points, str | None, bool]:
    """Return the points, the token of the next page, and whether there is a next page."""
    with database.read() as session:
        job = JobRepository(session, now).get(run_id)
        cursor = CurveRepository(session, database).cursor(job.pk)
    if cursor is None or not cursor.raw_deleted:
        page = point_page(database, run_id, (stored_name(key),), token or None, limit, now)
        return [(each.step, each.value, each.time) for each in page.data], page.last_id, page.has_more
    first = _next_step(token)
    (series,) = read_curves(database, run_id, CurveQuery((stored_name(key),), first, MAX_STEP, 1_000_000), now).series
    samples = list(zip(series.steps, series.values, series.times, strict=True))
    shown = samples[:limit]
    return shown, f"0.{shown[-1][0]}.0" if shown else None, len(samples) > limit


def _next_step(token: str) -> int:
    """Return the step after the step in a point's id, `<key>.<step>.<execution>`."""
    if not token:
        return 0
    parts = token.split(".")
    if len(parts) != 3 or not parts[1].isdecimal() or not parts[1].isascii() or len(parts[1]) > 16:
        raise InvalidRequestError(f"{token[:80]!r} is no token of a page", param="page_token")
    return min(int(parts[1]) + 1, MAX_STEP)
