"""The page that compares runs: selected runs, or the members of a sweep."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppState, AppStateDep, NowDep
from service.api.json_body import SlotRoute
from service.checkpoints.ranking import best_criterion
from service.core.errors import NotFoundError
from service.db.paging import PageRequest
from service.jobs.listing import JobFilter, read_job, read_page
from service.jobs.table.value_types import spec_fields
from service.metrics.x_axis import TOKENS
from service.sweeps import service as sweeps
from service.web.dependencies import PagesDep, VisitorDep
from trainyard.contract.job_query import Key
from trainyard.contract.spec.spec_diff import comparable, differing_paths
from trainyard.contract.stored_name import MAX_STORED_NAME
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.sweeps import SweepDetail

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

MAX_NAMED_RUNS = 50
MAX_MEMBERS = 200
DEFAULT_METRICS = ("eval/loss", "train/loss")
_MACHINE_METRICS = ("perf/", "memory/", "comm/")
_RECENT_SWEEPS = 8
_MAX_FIELDS = 20


@router.get("/compare")
def show_compare(
    app_state: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    job: Annotated[list[str] | None, Query(max_length=MAX_NAMED_RUNS)] = None,
    sweep: Annotated[str | None, Query(max_length=40)] = None,
    key: Annotated[str | None, Query(max_length=MAX_STORED_NAME)] = None,
) -> HTMLResponse:
    """Return the page for the given runs, with the fields in which their specs differ."""
    runs, missing = named_runs(app_state, now, list(dict.fromkeys(job or ())))
    detail = sweeps.read(app_state.database, sweep, now) if sweep else None
    if detail is not None:
        runs = [*member_runs(app_state, detail, now), *runs]
    keys = metric_keys(runs)
    ranking = detail.metric if detail else common_metric(runs)
    return pages.render(
        "compare.html",
        visitor,
        section="/compare",
        has_runs=bool(runs),
        sweep=detail,
        members_address=members_address(detail) if detail else None,
        may_change=detail is not None and visitor.may_change(detail.created_by),
        may_submit=visitor.user.role != "viewer",
        missing=missing,
        recent=[] if runs else sweeps.list_page(app_state.database, PageRequest(limit=_RECENT_SWEEPS))[0],
        data={
            **comparison(runs),
            "keys": keys,
            "key": choose_key(keys, key, ranking, "train/loss"),
            "outcome": choose_key(keys, ranking, *DEFAULT_METRICS),
            "sweep": sweep,
            "accelerator": app_state.settings.known_accelerator,
            "detail": detail.model_dump(mode="json") if detail else None,
        },
    )


def members_address(sweep: SweepDetail) -> str:
    """Return the address of the table of a sweep's jobs, with the fields that they change and the metric."""
    if not sweep.best:  # then its metric may be an unknown key; the page adds that of its first results by itself
        return f"/jobs?{urlencode({'sweep': sweep.id})}"
    known = spec_fields()
    fields = [field for field in sweep.fields if field in known][:_MAX_FIELDS]
    metrics = ("loss",) if sweep.metric == "train/loss" else ("loss", str(Key(sweep.metric)))
    columns = ("status", "name", *fields, "progress", *metrics, "age")
    return f"/jobs?{urlencode([('sweep', sweep.id), *(('columns', column) for column in dict.fromkeys(columns))])}"


def named_runs(app_state: AppState, now: datetime, ids: list[str]) -> tuple[list[JobResource], list[str]]:
    """Return the existing jobs, and the ids of the jobs that do not exist."""
    runs, missing = [], []
    for job_id in ids:
        try:
            runs.append(read_job(app_state.database, job_id, app_state.settings.runs, now))
        except NotFoundError:
            missing.append(job_id)
    return runs, missing


def member_runs(app_state: AppState, sweep: SweepDetail, now: datetime) -> list[JobResource]:
    """Return the jobs of a sweep, in the order of its members."""
    request = PageRequest(limit=MAX_MEMBERS)
    page = read_page(app_state.database, request, JobFilter(sweep=sweep.id), app_state.settings.runs, now)
    by_id = {job.id: job for job in page.data}
    return [by_id[member.job_id] for member in sweep.members if member.job_id in by_id]


def common_metric(runs: Sequence[JobResource]) -> str | None:
    """Return the metric by which all runs select their best checkpoint, if each has reported it."""
    metrics = {best_criterion((run.spec.get("checkpoint") or {}).get("keep_best")).metric for run in runs}
    return next((key for key in metrics if len(metrics) == 1 and all(key in run.metrics for run in runs)), None)


def comparison(jobs: Sequence[JobResource]) -> dict[str, Any]:
    """Return the fields and reported parameters in which the jobs differ, and each run with its values."""
    specs = [comparable(job.spec, job.parameters) for job in jobs]
    fields = differing_paths(specs)
    runs = [
        {
            "id": job.id,
            "name": job.name,
            "status": job.status,
            "tokens": TOKENS in job.metrics,
            "values": [spec.get(path) for path in fields],
            "code": job.spec.get("code"),
            "commit": job.metadata.get("git_commit"),
        }
        for job, spec in zip(jobs, specs, strict=True)
    ]
    return {"fields": fields, "runs": runs}


def metric_keys(jobs: Iterable[JobResource]) -> list[str]:
    """Return the metrics of all jobs: first the metrics of the model, then the metrics of the machine."""
    return sorted({key for job in jobs for key in job.metrics}, key=lambda key: (key.startswith(_MACHINE_METRICS), key))


def choose_key(keys: Sequence[str], *preferred: str | None) -> str:
    """Return the first preferred metric that a run has, otherwise the first metric; empty if there is none."""
    return next((key for key in (*preferred, *keys) if key is not None and key in keys), "")
