"""The page of what there is to run on, who has it, and how the service itself does."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppState, AppStateDep, NowDep
from service.api.routes.cluster import get_cluster
from service.db.paging import PageRequest
from service.jobs.listing import JobFilter, read_page
from service.web.pages import cluster_view
from service.web.pages.jobs import PagesDep, VisitorDep
from trainyard.contract.wire.jobs import JobResource

router = APIRouter(include_in_schema=False)

_PAGE = 200
_MOST_PAGES = 5
"""Jobs beyond are left out of the counts by person."""


@router.get("/cluster")
def show_cluster(services: AppStateDep, pages: PagesDep, visitor: VisitorDep, now: NowDep) -> HTMLResponse:
    """Its first view is what the scheduler said last; a script keeps it up."""
    cluster = get_cluster(services, visitor.user, now)
    database = services.settings.url.partition(":")[0].partition("+")[0]
    facts: dict[str, Any] = {
        "Backend": {"local": "this machine", "slurm": "Slurm"}.get(cluster.backend, cluster.backend),
        "Database": {"sqlite": "SQLite", "postgresql": "PostgreSQL"}.get(database, database),
        "Address": services.settings.service_url,
    }
    return pages.show(
        "cluster.html",
        visitor,
        now,
        here="/cluster",
        cluster=cluster,
        sentence=cluster_view.sentence(cluster),
        pools=cluster_view.pools(cluster),
        owners=cluster_view.owners(busy(services, now)),
        partitions=[(one, cluster_view.partition_cells(one)) for one in cluster.partitions],
        facts=facts,
    )


def busy(services: AppState, now: datetime) -> list[JobResource]:
    """Jobs that hold something or wait for it, the newest first."""
    jobs_in_use: list[JobResource] = []
    after = None
    for _ in range(_MOST_PAGES):
        job_filter = JobFilter(statuses=(*cluster_view.HOLDING, *cluster_view.WAITING))
        request = PageRequest(limit=_PAGE, after=after)
        page = read_page(services.database, request, job_filter, services.settings.runs, now)
        jobs_in_use += page.data
        if not page.has_more:
            break
        after = page.last_id
    return jobs_in_use
