"""The page on which runs are compared: any that are named, or the members of a sweep."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from service.api.dependencies import AppState, AppStateDep, NowDep
from service.core.errors import NotFoundError
from service.db.paging import PageRequest
from service.jobs.listing import JobFilter, read_job, read_page
from service.metrics.queries import CurveQuery, read_curves
from service.sweeps import service as sweeps
from service.web import svg_preview
from service.web.pages import job_view
from service.web.pages.compare_view import FIRST, compare
from service.web.pages.jobs import PagesDep, VisitorDep
from service.web.rendering import Visitor
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.sweeps import SweepDetail

router = APIRouter(include_in_schema=False)

MOST = 50
"""Runs that are named one by one."""
MOST_MEMBERS = 200
_RECENT = 8
_SKETCHED = 20
_SKETCHED_POINTS = 200


@router.get("/compare")
def show_compare(
    services: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    job: Annotated[list[str] | None, Query(max_length=MOST)] = None,
    sweep: Annotated[str | None, Query(max_length=40)] = None,
    key: Annotated[str | None, Query(max_length=200)] = None,
) -> HTMLResponse:
    """Curves of several runs in one frame, and a table of what differs between them."""
    runs, missing = named_jobs(services, visitor, now, list(dict.fromkeys(job or ())))
    detail = sweeps.read(services.database, sweep, now) if sweep else None
    if detail is not None:
        runs = [*members(services, detail, now), *runs]
    outcome = compare(runs, None, sweep=sweep).key
    curve = next((name for name in FIRST if is_curve(services, runs[:_SKETCHED], name, now)), None)
    compared = compare(runs, key or curve, sweep=sweep)
    recent = [] if runs else sweeps.list_page(services.database, PageRequest(limit=_RECENT))[0]
    return pages.show(
        "compare.html",
        visitor,
        now,
        here="/compare",
        compared=compared,
        drawn=drawn(services, runs[:_SKETCHED], compared.key, now),
        sweep=detail,
        may_change=detail is not None and visitor.may_change(detail.created_by),
        missing=missing,
        outcome=outcome,
        recent=recent,
        tones=job_view.TONES,
        data={
            "runs": [{"id": one.id, "name": one.name, "status": one.status} for one in runs],
            "sweep": sweep,
            "key": compared.key,
            "outcome": outcome,
            "members": detail.model_dump(mode="json")["members"] if detail else [],
        },
    )


def named_jobs(
    services: AppState, visitor: Visitor, now: datetime, ids: list[str]
) -> tuple[list[JobResource], list[str]]:
    """Those that there are, and the ids of those that there are not."""
    runs, missing = [], []
    for job_id in ids:
        try:
            runs.append(read_job(services.database, job_id, services.settings.runs, now))
        except NotFoundError:
            missing.append(job_id)
    return runs, missing


def members(services: AppState, sweep: SweepDetail, now: datetime) -> list[JobResource]:
    """The jobs of a sweep, in the order of its members."""
    request = PageRequest(limit=MOST_MEMBERS)
    page = read_page(services.database, request, JobFilter(sweep=sweep.id), services.settings.runs, now)
    by_id = {job.id: job for job in page.data}
    return [by_id[member.job_id] for member in sweep.members if member.job_id in by_id]


def is_curve(services: AppState, runs: list[JobResource], key: str, now: datetime) -> bool:
    """Whether it has more than an end in any run: what is evaluated once makes no line."""
    curve_query = CurveQuery((key,), max_points=10)
    there = (run for run in runs if key in run.metrics)
    return any(
        len(one.steps) > 2 for run in there for one in read_curves(services.database, run.id, curve_query, now).series
    )


def drawn(services: AppState, runs: list[JobResource], key: str, now: datetime) -> Markup:
    """The curves by step, until the page's script has drawn them."""
    curve_query = CurveQuery((key,), max_points=_SKETCHED_POINTS)
    series_of_runs = [read_curves(services.database, run.id, curve_query, now).series for run in runs if key]
    curves = [list(zip(series[0].steps, series[0].values, strict=True)) if series else [] for series in series_of_runs]
    return svg_preview.draw_several(curves, title=f"{key} by step")
