"""Routes of the cluster, which only read what the reconciler has stored, and of the maintenance mode."""

from fastapi import APIRouter

from service.api.dependencies import AdminDep, AppState, AppStateDep, NowDep, UserDep
from service.api.json_body import JsonRoute, SlotRoute
from service.cluster.repository import ClusterRepository, MaintenanceRepository
from trainyard.contract.wire.cluster import ClusterResource, MaintenanceRequest, MaintenanceResource

router = APIRouter(prefix="/v1/cluster", tags=["cluster"], route_class=SlotRoute)
maintenance_router = APIRouter(prefix="/v1/maintenance", tags=["cluster"], route_class=JsonRoute)


@router.get("", operation_id="get_cluster")
def get_cluster(app_state: AppStateDep, _user: UserDep, now: NowDep) -> ClusterResource:
    """Get partitions, nodes by state and GPUs by type, as the scheduler last reported them."""
    with app_state.database.read() as session:
        return ClusterRepository(session).resource(app_state.settings.backend, now)


@maintenance_router.get("", operation_id="get_maintenance")
def get_maintenance(app_state: AppStateDep, _user: UserDep) -> MaintenanceResource:
    """Get whether the maintenance mode is active, since when and by whom."""
    return read_maintenance(app_state)


@maintenance_router.put("", operation_id="set_maintenance")
def set_maintenance(
    app_state: AppStateDep, admin: AdminDep, now: NowDep, body: MaintenanceRequest
) -> MaintenanceResource:
    """Turn the maintenance mode on or off. While it is on, jobs are accepted and wait; running ones continue."""
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
