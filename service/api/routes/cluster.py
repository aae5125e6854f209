"""Routes of the cluster, which only read the reconciler's stored snapshot, of the maintenance mode, and of orphans."""

from typing import Annotated

from fastapi import APIRouter, Path

from service.api.dependencies import AdminDep, AppState, AppStateDep, NowDep, UserDep
from service.api.json_body import JsonRoute, SlotRoute
from service.cluster import orphans
from service.cluster.repository import ClusterRepository, MaintenanceRepository, NodeFaultRepository
from service.cluster.schemas import excluded_node_resource
from service.db.visibility import present_reader, visible_ids
from service.jobs.schemas import page_of
from trainyard.contract.wire.cluster import ClusterResource, MaintenanceRequest, MaintenanceResource
from trainyard.contract.wire.orphans import OrphanRequest, OrphanResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/cluster", tags=["cluster"], route_class=SlotRoute)
orphans_router = APIRouter(prefix="/v1/orphans", tags=["cluster"], route_class=JsonRoute)
maintenance_router = APIRouter(prefix="/v1/maintenance", tags=["cluster"], route_class=JsonRoute)

NodeName = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name of the node in Slurm.", examples=["node2"]),
]


@router.get("", operation_id="get_cluster")
def get_cluster(app_state: AppStateDep, _user: UserDep, now: NowDep) -> ClusterResource:
    """Get partitions, nodes by state and GPUs by type, as the scheduler last reported them, and excluded nodes."""
    backend = app_state.settings.backend
    with app_state.database.read() as session:
        cluster = ClusterRepository(session).resource(backend, now)
        excluded = NodeFaultRepository(session, now).exclusions(backend)
        named = {fault.job_id for node in excluded.nodes for fault in node.faults}
        visible = None if present_reader() is None else visible_ids(session, named)
    shown = [excluded_node_resource(node, visible) for node in excluded.nodes]
    return cluster.model_copy(update={"excluded_nodes": shown, "node_warning": excluded.warning})


@router.delete("/excluded-nodes/{node}", status_code=204, operation_id="include_node")
def include_node(app_state: AppStateDep, _admin: AdminDep, now: NowDep, node: NodeName) -> None:
    """Let jobs use an excluded node again, such as after its repair. Faults of two further jobs exclude it again."""
    with app_state.database.write() as session:
        NodeFaultRepository(session, now).include(node)


@maintenance_router.get("", operation_id="get_maintenance")
def get_maintenance(app_state: AppStateDep, _user: UserDep) -> MaintenanceResource:
    """Get whether the maintenance mode is active, since when and by whom."""
    return read_maintenance(app_state)


@maintenance_router.put("", operation_id="set_maintenance")
def set_maintenance(
    app_state: AppStateDep, admin: AdminDep, now: NowDep, body: MaintenanceRequest
) -> MaintenanceResource:
    """Turn the maintenance mode on or off. While it is on, jobs are accepted and wait; running jobs continue."""
    with app_state.database.write() as session:
        maintenance = MaintenanceRepository(session, app_state.settings.instance)
        if body.active:
            maintenance.start(app_state.database, body.message, admin.name, now)
        else:
            maintenance.end()
    app_state.notify_reconciler()
    return read_maintenance(app_state)


def read_maintenance(app_state: AppState) -> MaintenanceResource:
    """Return the maintenance mode."""
    with app_state.database.read() as session:
        return MaintenanceRepository(session, app_state.settings.instance).resource()


OrphanId = Annotated[
    str,
    Path(
        pattern=r"^[a-z0-9_-]{1,64}$",
        description="Id of the orphan: a job's id, or the name of an attempt in the scheduler.",
    ),
]


@orphans_router.get("", operation_id="list_orphans")
def list_orphans(app_state: AppStateDep, _admin: AdminDep) -> Page[OrphanResource]:
    """List entries of the scheduler's queue and run directories that no job names, such as after a restore."""
    return page_of(orphans.list_orphans(app_state.database), False, lambda row: row, lambda orphan: orphan.id)


@orphans_router.post("/{orphan_id}/resolve", status_code=202, operation_id="resolve_orphan")
def resolve_orphan(app_state: AppStateDep, admin: AdminDep, orphan_id: OrphanId, body: OrphanRequest) -> OrphanResource:
    """Request that an orphan is cancelled in the scheduler, or adopted as a job of the caller, or of another user."""
    orphan = orphans.request(app_state.database, orphan_id, body, admin.name, app_state.clock())
    app_state.notify_reconciler()
    return orphan
