"""The comparison of a sweep's members, and the links to recent sweeps."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse

from service.api.dependencies import AppState
from service.api.plugin import RunGroup
from service.db.paging import PageRequest
from service.jobs.listing import JobFilter, read_page
from service.jobs.table.value_types import spec_fields
from service.plugins.sweeps import service as sweeps
from service.projects.service import may_change
from service.web.pages.compare import DEFAULT_METRICS, ComparisonPage, choose_key, metric_keys
from trainyard.contract.job_query import Key
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.sweeps import SweepDetail

PARAMETER = "sweep"
BY_SWEEP = "/jobs?where=exists+sweep&group=sweep"
"""The table of jobs, with a group for each sweep."""
"""The parameter of `/compare` that names a sweep."""
_MAX_MEMBERS = 200
_MAX_FIELDS = 20


def compare_members(page: ComparisonPage, sweep_id: str) -> HTMLResponse:
    """Return the page that compares the members of a sweep. Raises NotFoundError."""
    sweep = sweeps.read(page.app_state.database, sweep_id, page.now)
    runs = [*member_runs(page.app_state, sweep, page.now), *page.runs]
    return page.render(
        "sweep.html",
        runs,
        sweep.metric,
        data={
            "outcome": choose_key(metric_keys(runs), sweep.metric, *DEFAULT_METRICS),
            "sweep": sweep.model_dump(mode="json"),
        },
        sweep=sweep,
        members_address=members_address(sweep),
        may_change=may_change(page.app_state.database, page.visitor.user, sweep.created_by, sweep.project),
        may_submit=page.visitor.user.role != "viewer",
    )


def recent_sweeps(app_state: AppState, limit: int) -> Sequence[RunGroup]:
    """Return links to the newest sweeps."""
    rows, _ = sweeps.list_page(app_state.database, PageRequest(limit=limit))
    return [
        RunGroup(row.id, row.name, f"{row.size} jobs over {', '.join(row.fields)}, by {row.created_by}", row.created_at)
        for row in rows
    ]


def members_address(sweep: SweepDetail) -> str:
    """Return the address of the table of a sweep's jobs, with the fields that they change and the metric."""
    if not sweep.best:  # then its metric may be an unknown key; the page adds that of its first results by itself
        return f"/jobs?{urlencode({'sweep': sweep.id})}"
    known = spec_fields()
    fields = [field for field in sweep.fields if field in known][:_MAX_FIELDS]
    metrics = ("loss",) if sweep.metric == "train/loss" else ("loss", str(Key(sweep.metric)))
    columns = ("status", "name", *fields, "progress", *metrics, "age")
    return f"/jobs?{urlencode([('sweep', sweep.id), *(('columns', column) for column in dict.fromkeys(columns))])}"


def member_runs(app_state: AppState, sweep: SweepDetail, now: datetime) -> list[JobResource]:
    """Return the jobs of a sweep, in the order of its members."""
    request = PageRequest(limit=_MAX_MEMBERS)
    page = read_page(app_state.database, request, JobFilter(sweep=sweep.id), app_state.settings.runs, now)
    by_id = {job.id: job for job in page.data}
    return [by_id[member.job_id] for member in sweep.members if member.job_id in by_id]
