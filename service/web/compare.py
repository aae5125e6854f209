"""The page on which runs are compared: any that are named, or the members of a sweep."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.dependencies import NowDep, Services, ServicesDep
from service.errors import NotFoundError
from service.jobs import endpoints as jobs
from service.jobs.repository import JobFilter, Window
from service.sweeps import actions as sweeps
from service.web import views
from service.web.comparing import compare
from service.web.endpoints import PagesDep, VisitorDep
from service.web.pages import Visitor
from trainyard.contract.resources import JobResource
from trainyard.contract.sweeps import SweepDetail

router = APIRouter(include_in_schema=False)

MOST = 50
"""Runs that are named one by one."""
MOST_MEMBERS = 200
_RECENT = 8


@router.get("/compare")
def show_compare(
    services: ServicesDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    job: Annotated[list[str] | None, Query(max_length=MOST)] = None,
    sweep: Annotated[str | None, Query(max_length=40)] = None,
    key: Annotated[str | None, Query(max_length=200)] = None,
) -> HTMLResponse:
    """Curves of several runs in one frame, and a table of what differs between them."""
    found, missing = named_jobs(services, visitor, now, list(dict.fromkeys(job or ())))
    detail = sweeps.read(services, sweep, now) if sweep else None
    if detail is not None:
        found = [*members(services, detail, now), *found]
    compared = compare(found, key, sweep=sweep)
    recent = [] if found else sweeps.page(services, Window(limit=_RECENT))[0]
    return pages.show(
        "compare.html",
        visitor,
        now,
        here="/compare",
        compared=compared,
        sweep=detail,
        missing=missing,
        recent=recent,
        tones=views.TONES,
        data={
            "runs": [{"id": one.id, "name": one.name, "status": one.status} for one in found],
            "sweep": sweep,
            "key": compared.key,
            "members": detail.model_dump(mode="json")["members"] if detail else [],
        },
    )


def named_jobs(
    services: Services, visitor: Visitor, now: NowDep, ids: list[str]
) -> tuple[list[JobResource], list[str]]:
    """Those that there are, and the ids of those that there are not."""
    found, missing = [], []
    for job_id in ids:
        try:
            found.append(jobs.get(services, visitor.person, now, job_id))
        except NotFoundError:
            missing.append(job_id)
    return found, missing


def members(services: Services, sweep: SweepDetail, now: NowDep) -> list[JobResource]:
    """The jobs of a sweep, in the order of its members."""
    page = jobs.jobs_page(services, Window(limit=MOST_MEMBERS), JobFilter(sweep=sweep.id), now)
    by_id = {job.id: job for job in page.data}
    return [by_id[member.job_id] for member in sweep.members if member.job_id in by_id]
