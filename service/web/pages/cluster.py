"""The page of the cluster: capacity, usage by user, and the health of the service."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppStateDep, NowDep
from service.api.json_body import SlotRoute
from service.api.routes.cluster import get_cluster
from service.scheduler.backends import BACKENDS
from service.web.dependencies import PagesDep, VisitorDep

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

_DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


@router.get("/cluster")
def show_cluster(app_state: AppStateDep, pages: PagesDep, visitor: VisitorDep, now: NowDep) -> HTMLResponse:
    """Return the page with the stored cluster snapshot; its script reads the rest and refreshes everything."""
    cluster = get_cluster(app_state, visitor.user, now)
    database = app_state.settings.url.partition(":")[0].partition("+")[0]
    return pages.render(
        "cluster.html",
        visitor,
        section="/cluster",
        cluster=cluster,
        settings={
            "Backend": BACKENDS[app_state.settings.backend].title,
            "Database": _DATABASES.get(database, database),
            "Address": app_state.settings.service_url,
        },
        data={"cluster": cluster.model_dump(mode="json")},
    )
