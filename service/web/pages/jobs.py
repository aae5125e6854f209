"""The table of jobs, and the page of a job."""

import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from service.api.dependencies import AppStateDep, JobWindowDep, NowDep
from service.api.json_body import SlotRoute
from service.api.query_params import metadata_filter, parameters_filter
from service.core.errors import InvalidRequestError
from service.db.paging import PageRequest
from service.jobs.listing import JobFilter, read_job, read_member
from service.jobs.table.listing import MAX_COLUMNS, TableRequest, list_table
from service.media.repository import has_media
from service.metrics.queries import CurveQuery, read_curves
from service.projects.service import may_change
from service.web.dependencies import PagesDep, VisitorDep
from service.web.pages.spec_text import spec_yaml
from service.web.security import PAGE_HEADERS
from trainyard.contract.job_query import MAX_KEY, MAX_QUERY, quoted
from trainyard.contract.wire.jobs import TERMINAL, JobResource, JobStatus
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.sweeps import format_values

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

FIRST_ROWS = 50
PREVIEW_METRIC = "train/loss"
PREVIEW_POINTS = 400
TABS = (
    ("overview", "Overview"),
    ("charts", "Charts"),
    ("media", "Media"),
    ("log", "Log"),
    ("spec", "Spec & code"),
    ("history", "History"),
)
"""The tabs of a job's page."""
MAX_CAUSE = 1000
"""Characters of an error's message that the table has."""

STATUS_GROUPS: tuple[tuple[str, tuple[JobStatus, ...]], ...] = (
    ("Waiting", ("queued", "submitting", "pending")),
    ("Running", ("running", "pausing", "cancelling")),
    ("Paused", ("paused",)),
    ("Succeeded", ("succeeded",)),
    ("Failed", ("failed", "lost")),
    ("Cancelled", ("cancelled",)),
)
"""The status filters of the table, with the statuses that each selects."""

_ROW_FIELDS = {
    *("id", "name", "status", "status_message", "created_by", "created_at", "started_at", "finished_at", "progress"),
    *("project", "sweep_id", "tags", "notes", "archived", "values"),
}
BUILT_IN_COLUMNS = frozenset(
    {"status", "name", "progress", "loss", "gpus", "strategy", "owner", "age", "tags", "notes", "runtime"}
)
"""Columns of the page that need no value of the service."""
_ROW_SPEC_FIELDS = ("gpus", "strategy", "precision", "lora_rank")


def row_fields(job: JobResource) -> dict[str, Any]:
    """Return the fields of a job that the table shows, so that a page of 50 jobs is small.

    Same as in the API, except that the loss has the same key for all jobs, and the only other metric is the evaluation
    metric.
    """
    fields = job.model_dump(mode="json", include={*_ROW_FIELDS, "metrics", "loss_metric", "evaluation_metric"})
    metrics, evaluation = fields["metrics"], job.evaluation_metric
    return {
        **fields,
        "spec": {name: job.spec.get(name) for name in _ROW_SPEC_FIELDS},
        "metrics": {
            **({evaluation: metrics[evaluation]} if evaluation else {}),
            PREVIEW_METRIC: metrics.get(job.loss_metric or PREVIEW_METRIC),
        },
        "error": {"type": job.error.type, "message": job.error.message[:MAX_CAUSE]} if job.error else None,
    }


def first_rows(window: JobWindowDep) -> PageRequest:
    """Return the request for the first rows, in the order that the address gives."""
    return PageRequest(limit=FIRST_ROWS, descending=window.descending)


def requested_table(
    request: Request,
    status: Annotated[list[JobStatus] | None, Query()] = None,
    search: Annotated[str, Query(max_length=120)] = "",
    created_by: Annotated[str | None, Query(max_length=128)] = None,
    sweep: Annotated[str | None, Query(max_length=40)] = None,
    where: Annotated[str, Query(max_length=MAX_QUERY)] = "",
    sort: Annotated[str, Query(max_length=MAX_KEY + 1)] = "",
    columns: Annotated[list[str] | None, Query(max_length=MAX_COLUMNS)] = None,
    group: Annotated[str, Query(max_length=MAX_KEY)] = "",
    archived: Annotated[Literal["no", "only", "all"], Query()] = "no",
) -> TableRequest:
    """Return the request in the page's address. It has the filters of the API."""
    keys = dict.fromkeys([*(columns or ()), *group_keys(group)])
    return TableRequest(
        where=where,
        sort=sort,
        columns=tuple(key for key in keys if key not in BUILT_IN_COLUMNS),
        archived={"no": False, "only": True, "all": None}[archived],
        job_filter=JobFilter(
            statuses=tuple(status or ()),
            search=search or None,
            created_by=created_by or None,
            sweep=sweep or None,
            metadata=metadata_filter(request),
            parameters=parameters_filter(request),
        ),
    )


def group_keys(text: str) -> list[str]:
    """Return the keys that a view groups by, which commas separate; a comma within a key is doubled."""
    return [key.replace(",,", ",") for key in re.findall(r"(?:[^,]|,,)+", text)]


@router.get("/jobs")
def show_jobs(
    app_state: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    window: Annotated[PageRequest, Depends(first_rows)],
    table: Annotated[TableRequest, Depends(requested_table)],
) -> HTMLResponse:
    """Return the table of jobs. Its state is stored in the address."""
    page, error = Page[JobResource](data=[]), None
    try:
        page = list_table(app_state.database, window, table, app_state.settings.runs, now)
    except InvalidRequestError as refusal:
        error = refusal.message
    data = {
        "jobs": [row_fields(job) for job in page.data],
        "has_more": page.has_more,
        "last_id": page.last_id,
        "error": error,
        "accelerator": app_state.settings.known_accelerator,
    }
    return pages.render(
        "jobs.html",
        visitor,
        section="/jobs",
        may_submit=visitor.user.role != "viewer",
        statuses=table.job_filter.statuses,
        groups=STATUS_GROUPS,
        search=table.job_filter.search or "",
        created_by=table.job_filter.created_by or "",
        where=table.where,
        only_archived=table.archived is True,
        data=data,
    )


@router.get("/jobs/{job_id}")
def show_job(app_state: AppStateDep, pages: PagesDep, visitor: VisitorDep, now: NowDep, job_id: str) -> HTMLResponse:
    """Return the page of a job, with the curve of its loss for the first view."""
    job = read_job(app_state.database, job_id, app_state.settings.runs, now)
    preview = CurveQuery((PREVIEW_METRIC,), max_points=PREVIEW_POINTS)
    curves = read_curves(app_state.database, job_id, preview, now)
    member = read_member(app_state.database, job.sweep_id, job.id, now) if job.sweep_id else None
    return pages.render(
        "job.html",
        visitor,
        section="/jobs",
        job=job,
        project_query=f"project = {quoted(job.project)}" if job.project else None,
        member=member and {"number": member[0], "values": format_values(member[1])},
        tabs=TABS,
        may_get_checkpoints=job.last_checkpoint_step is not None or job.status not in TERMINAL,
        has_media=has_media(app_state.database, job.id),
        ranks=range(int(job.spec.get("gpus") or 1)),
        spec=spec_yaml(job.spec),
        may_change=may_change(app_state.database, visitor.user, job.created_by, job.project),
        data={
            "job": job.model_dump(mode="json", by_alias=True),
            "accelerator": app_state.settings.known_accelerator,
            "preview": curves.model_dump(mode="json", include={"series": {0: {"steps", "values"}}})["series"][0],
        },
    )


@router.get("/jobs/{job_id}/wandb/{page:path}")
def redirect_to_job(job_id: str, page: str) -> RedirectResponse:
    """Lead a link that W&B's client prints in a job to the page of the job."""
    return RedirectResponse(f"/jobs/{quote(job_id, safe='')}", status_code=303, headers=PAGE_HEADERS)
