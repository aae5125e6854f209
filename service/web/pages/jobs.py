"""The pages. Each draws its first view with what the API itself would answer; scripts go on from there."""

from datetime import timedelta
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from service.api.dependencies import AppStateDep, JobWindowDep, NowDep, get_caller, set_audit_caller
from service.api.query_params import metadata_filter
from service.auth.sessions import require_csrf, sign_in, sign_out
from service.core.errors import AuthenticationError
from service.db.paging import PageRequest
from service.jobs.listing import JobFilter, read_job, read_page
from service.metrics.queries import CurveQuery, read_curves
from service.web.charts import charts_of
from service.web.pages import job_view
from service.web.rendering import Pages, Visitor
from service.web.security import PAGE_HEADERS, safe_redirect
from trainyard.contract.wire.jobs import TERMINAL, JobStatus

router = APIRouter(include_in_schema=False)

FIRST_ROWS = 50
SKETCHED_POINTS = 400


async def get_pages(request: Request) -> Pages:
    pages: Pages = request.app.state.pages
    return pages


PagesDep = Annotated[Pages, Depends(get_pages)]


async def get_visitor(request: Request) -> Visitor:
    """Return the signed-in user. Pages accept only browser sessions, not API tokens.

    Raises:
        AuthenticationError: nobody is signed in; the response is the page for signing in.
    """
    caller = get_caller(request)
    if caller.secret is None:
        raise AuthenticationError
    return Visitor(caller.principal, caller.secret)


VisitorDep = Annotated[Visitor, Depends(get_visitor)]


@router.get("/")
def home() -> Response:
    return RedirectResponse("/jobs", status_code=303, headers=PAGE_HEADERS)


@router.get("/static/{group}/{name}")
def static(request: Request, pages: PagesDep, group: str, name: str) -> Response:
    """A script or a style. Whoever asks learns nothing that is not in the package."""
    return pages.file(group, name, gzipped="gzip" in request.headers.get("accept-encoding", ""))


@router.get("/sign-in")
def show_sign_in(request: Request, pages: PagesDep, now: NowDep, next: str = "/jobs") -> HTMLResponse:
    return pages.show("sign_in.html", None, now, next=safe_redirect(next), problem="")


@router.post("/sign-in", operation_id="sign_in")
async def do_sign_in(request: Request, services: AppStateDep, pages: PagesDep, now: NowDep) -> Response:
    """Make a session of a token. A wrong one is counted in the audit, and limited as elsewhere, by address."""
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    token, target = form.get("token", [""])[0].strip(), safe_redirect(form.get("next", [""])[0])
    lifetime = timedelta(hours=services.settings.session_hours)
    try:
        principal, secret = await run_in_threadpool(sign_in, services.database, token, lifetime, now)
    except AuthenticationError:
        problem = "Invalid or expired token."
        return pages.show("sign_in.html", None, now, status=401, next=target, problem=problem)
    set_audit_caller(request, principal)
    headers = {"Set-Cookie": services.cookie.header(secret, int(lifetime.total_seconds()))}
    return RedirectResponse(target, status_code=303, headers={**PAGE_HEADERS, **headers})


@router.post("/sign-out", operation_id="sign_out")
async def do_sign_out(request: Request, services: AppStateDep, visitor: VisitorDep) -> Response:
    """End the session, for whoever holds its cookie."""
    set_audit_caller(request, visitor.user)
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    require_csrf(visitor.secret, form.get("csrf", [""])[0])
    await run_in_threadpool(sign_out, services.database, visitor.secret)
    headers = {**PAGE_HEADERS, "Set-Cookie": services.cookie.header("", 0)}
    return RedirectResponse("/sign-in", status_code=303, headers=headers)


def first_rows(window: JobWindowDep) -> PageRequest:
    """A screenful, in the order of the address."""
    return PageRequest(limit=FIRST_ROWS, descending=window.descending)


@router.get("/jobs")
def show_jobs(
    request: Request,
    services: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    window: Annotated[PageRequest, Depends(first_rows)],
    status: Annotated[list[JobStatus] | None, Query()] = None,
    search: Annotated[str, Query(max_length=120)] = "",
    created_by: Annotated[str | None, Query(max_length=128)] = None,
    sweep: Annotated[str | None, Query(max_length=40)] = None,
) -> HTMLResponse:
    """The table of jobs; its filters are those of the API, in the address."""
    labels = metadata_filter(request)
    job_filter = JobFilter(
        statuses=tuple(status or ()),
        search=search or None,
        created_by=created_by or None,
        sweep=sweep or None,
        metadata=labels,
    )
    page = read_page(services.database, window, job_filter, services.settings.runs, now)
    return pages.show(
        "jobs.html",
        visitor,
        now,
        here="/jobs",
        rows=[job_view.row(job) for job in page.data],
        filtered=bool(job_filter.statuses or search or created_by or sweep or labels),
        may_submit=visitor.user.role != "viewer",
        statuses=job_filter.statuses,
        blank=job_view.EMPTY_ROW,
        groups=job_view.GROUPS,
        search=search,
        created_by=created_by or "",
        data={"jobs": [job_view.brief(job) for job in page.data], "has_more": page.has_more, "last_id": page.last_id},
    )


@router.get("/jobs/{job_id}")
def show_job(services: AppStateDep, pages: PagesDep, visitor: VisitorDep, now: NowDep, job_id: str) -> HTMLResponse:
    """One job: what it does, and its loss so far; scripts bring the rest."""
    job = read_job(services.database, job_id, services.settings.runs, now)
    curve = read_curves(services.database, job_id, CurveQuery((job_view.LOSS,), max_points=SKETCHED_POINTS), now)
    drawn = charts_of(job.spec, job.metrics.keys())
    return pages.show(
        "job.html",
        visitor,
        now,
        here="/jobs",
        job=job,
        tone=job_view.TONES[job.status],
        sentence=job_view.sentence(job),
        fraction=job_view.fraction_done(job),
        failure=job_view.error_view(job),
        facts=job_view.facts(job),
        charts=drawn,
        has_no_points=job.status in TERMINAL and not job.metrics,
        curve=curve.series[0],
        ranks=[*map(str, range(int(job.spec.get("gpus") or 1))), "launch"],
        spec=job_view.spec_text(job),
        may_change=visitor.may_change(job.created_by),
        data={"job": job.model_dump(mode="json", by_alias=True), "charts": [chart.plain for chart in drawn]},
    )
